"""Files beside models that users give, for the fuzzer of importers: seeds, their trees, what reads
them."""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import re
import shutil
import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.paths import ROOT

Tree = Any


class Folder:
    """A folder of this process, with a file that is written again and again."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def file(self, name: str, data: bytes) -> Path:
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="aotc-fuzz-"))
            atexit.register(shutil.rmtree, self._path, ignore_errors=True)
        path = self._path / name
        path.write_bytes(data)
        return path


FOLDER = Folder()


def json_made(tree: Tree) -> bytes:
    return json.dumps(tree).encode()


# ---- tokenizer.json, and tokenizer_config.json beside it ----


def tokeniser_seeds() -> list[bytes]:
    from aot.text.pre_tokenisers import CUTS

    tokens = [
        {"id": 4, "content": "<s>", "special": True, "rstrip": True, "lstrip": False},
        {"id": 5, "content": "</s>", "special": False},
    ]
    first, end = ({"SpecialToken": {"id": text}} for text in ("<s>", "</s>"))
    around = {"type": "TemplateProcessing", "single": [first, {"Sequence": {"id": "A"}}, end]}
    pattern = {"Regex": CUTS["gpt-2"][0].pattern}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated"}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    merged = {
        "added_tokens": tokens,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": {"type": "Sequence", "processors": [around]},
        "model": {
            "type": "BPE",
            "vocab": {"a": 0, "b": 1, "ab": 2, "<0x0A>": 3},
            "merges": ["a b", ["ab", "a"]],
            "byte_fallback": True,
            "unk_token": "a",
            "ignore_merges": True,
        },
    }
    normalizers = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAA"},
        {"type": "Strip"},
        {"type": "NFC"},
    ]
    scored = {
        "added_tokens": tokens,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"},
        "post_processor": around,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5]]},
    }
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "add_bos_token": True,
        "add_eos_token": False,
        "chat_template": [{"name": "default", "template": "{{ messages }}"}],
    }
    return [json_made([one, config]) for one in (merged, scored)]


def tokeniser_read(data: bytes) -> Any:
    from aot.text.tokenizer_json import read_vocabulary

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return None  # the caller's to read
    return read_vocabulary(*given[:2]) if isinstance(given, list) and given else None


# ---- targets and batches ----


def toml_taken(data: bytes) -> Tree:
    import tomllib

    return tomllib.loads(data.decode())


def toml_made(tree: Tree) -> bytes:
    """Tables in tables are in line; raises a TypeError for what TOML hasn't."""

    def value(given: Tree) -> str:
        if isinstance(given, dict):
            parts = (f"{json.dumps(str(k))} = {value(v)}" for k, v in given.items())
            return "{" + ", ".join(parts) + "}"
        if isinstance(given, list):
            return "[" + ", ".join(map(value, given)) + "]"
        if isinstance(given, float):
            return repr(given) if "inf" in repr(given) or "nan" in repr(given) else f"{given:e}"
        if isinstance(given, (bool, int, str)):
            return json.dumps(given)
        raise TypeError(given)

    lines = []
    for key, held in tree.items():
        if isinstance(held, dict) and not any(isinstance(v, dict) for v in held.values()):
            lines.append(f"[{json.dumps(str(key))}]")
            lines += [f"{json.dumps(str(k))} = {value(v)}" for k, v in held.items()]
        else:
            lines.insert(0, f"{json.dumps(str(key))} = {value(held)}")
    return "\n".join(lines).encode()


def target_seeds() -> list[bytes]:
    names = ("x86-64-v3", "thumbv7em", "wasm32", "vulkan-1.1", "nvidia-matrix")
    return [(ROOT / "targets" / f"{name}.toml").read_bytes() for name in names]


def target_read(data: bytes) -> Any:
    from aot.target.toml import load_file

    return load_file(FOLDER.file("t.toml", data))


def batch_seeds() -> list[bytes]:
    tree = {
        "models": ["a.onnx", {"path": "b.onnx", "name": "b", "input_shapes": {"x": "1x3xHx4"}}],
        "targets": ["host", ["x86-64-v2", "x86-64-v3"], {"name": "t", "targets": ["t.toml"]}],
        "output": "built",
        "defaults": {"optimize": "speed"},
        "options": [
            {"name": "plain"},
            {"name": "fixed", "input_values": {"n": 3, "m": [1.5, 2]}, "input_shapes": {"x": [1]}},
            {"name": "kept", "states": {"past": ["present", 16]}, "max_extents": {"n": 9}},
        ],
        "skip": [{"model": "a", "option": "plain"}],
    }
    return [toml_made(tree)]


def batch_read(data: bytes) -> Any:
    from aot.tools.batch.file import read_batch

    return read_batch(FOLDER.file("b.toml", data))


# ---- records of tuning: a line of JSON each ----


def tuning_seeds() -> list[bytes]:
    record = {
        "key": "0123456789" * 4,
        "target": "host",
        "what": "conv",
        "compiler": "x",
        "base": {"rows": 4},
        "best": {"rows": 8, "kind": "tile"},
        "confirmed": [[{"rows": 8, "kind": "tile"}, 0.5]],
        "ratios": [[{"rows": 4}, 1.0], [{"rows": 8, "kind": "tile"}, 0.75]],
    }
    return [json_made(record) + b"\n" + json_made({**record, "target": "y"}) + b"\n"]


def tuning_taken(data: bytes) -> Tree:
    return [json.loads(line) for line in data.splitlines()]


def tuning_made(tree: Tree) -> bytes:
    return b"".join(json_made(record) + b"\n" for record in tree)


def tuning_read(data: bytes) -> Any:
    from aot.tuning.cache import TuningCache

    return TuningCache(FOLDER.file("t.jsonl", data)).lines


# ---- text IR: its words ----


def text_seeds() -> list[bytes]:
    from aot.frontends.onnx import import_onnx
    from aot.ir.text.printer import print_module
    from tests.support import module_seeds
    from tests.support.control_models import CONTROLLED

    made = [import_onnx(graph()) for graph, _ in module_seeds.GRAPHS.values()]
    made += [import_onnx(case.model()) for case in [*CONTROLLED.values()][:4]]
    texts = sorted((print_module(module) for module in made), key=len)
    return [text.encode() for text in texts[:8]]


def text_taken(data: bytes) -> Tree:
    """Lines of words."""
    return [_WORDS.findall(line) for line in data.decode().splitlines()]


_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|-?[\w.]+|\s+|.')


def text_made(tree: Tree) -> bytes:
    lines = ("".join(map(str, words if isinstance(words, list) else [words])) for words in tree)
    return "\n".join(lines).encode()


def text_read(data: bytes) -> Any:
    from aot.driver.pipeline import read_model
    from aot.options import CompileOptions

    return read_model(FOLDER.file("m.ir", data), CompileOptions())


# ---- arrays ----


def array_seeds() -> list[bytes]:
    made = []
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.int64(3), np.zeros((0, 2))):
        stream = io.BytesIO()
        np.save(stream, array)
        made.append(stream.getvalue())
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.arange(6.0), y=np.ones((2, 2), np.uint8))
    return [*made, stream.getvalue()]


def array_taken(data: bytes) -> Tree:
    if data[:2] == b"PK":
        return {"zip": data}
    length = int.from_bytes(data[8:10], "little")
    header = eval(data[10 : 10 + length], {"__builtins__": {}})
    return {
        "magic": data[:8],
        "more": 0,
        "header": {**header, "shape": list(header["shape"])},
        "rest": data[10 + length :],
    }


def array_made(tree: Tree) -> bytes:
    if "zip" in tree:
        return bytes(tree["zip"])
    header = tree["header"]
    if isinstance(header, dict) and isinstance(header.get("shape"), list):
        header = {**header, "shape": tuple(header["shape"])}
    text = repr(header).encode()
    length = (len(text) + tree["more"]).to_bytes(2, "little")
    return bytes(tree["magic"]) + length + text + bytes(tree["rest"])


def array_read(data: bytes) -> Any:
    from aot.ir.array_files import arrays

    return arrays(FOLDER.file("a.npy", data))


# ---- entries of the cache of compiled code ----

# Of ELF's header of 64 bits behind its first 16 bytes, and of a section's.
_ELF, _SECTION = struct.Struct("<HHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
_ENTRY_KEY = "0" * 64
_ENTRY_TARGET = "x86-64-v3"


def entry_seeds() -> list[bytes]:
    """Objects of a small graph's kernels, as the cache stores them."""
    import aot
    from tests.support.module_seeds import dynamic

    with tempfile.TemporaryDirectory() as folder:
        aot.compile(dynamic(), targets=[_ENTRY_TARGET], cache_dir=folder)
        found = [path.read_bytes() for path in sorted(Path(folder).glob("??/*"))]
    return [data for data in found if data[80:84] == b"\x7fELF"]


def entry_taken(data: bytes) -> Tree:
    elf = data[80:]
    head = list(_ELF.unpack_from(elf, 16))
    start, count = head[5], head[11]
    sections = [list(_SECTION.unpack_from(elf, start + 64 * n)) for n in range(count)]
    return {
        "magic": data[:8],
        "has right digest": True,
        "more length": 0,
        "ident": elf[:16],
        "head": head,
        "body": elf[64:start],
        "sections": sections,
    }


def entry_made(tree: Tree) -> bytes:
    """Raises a struct.error for numbers that a field cannot hold."""
    parts = [bytes(tree["ident"]), _ELF.pack(*tree["head"]), bytes(tree["body"])]
    elf = b"".join([*parts, *(_SECTION.pack(*section) for section in tree["sections"])])
    digest = hashlib.sha256(elf).digest() if tree["has right digest"] else bytes(32)
    length = (len(elf) + tree["more length"]).to_bytes(8, "little")
    return b"".join([bytes(tree["magic"]), bytes.fromhex(_ENTRY_KEY), digest, length, elf])


def entry_read(data: bytes) -> Any:
    """What a compile takes of an entry: an object that can be linked, or nothing."""
    from aot.backends.cpu.object_cache import ObjectCache
    from aot.link.code_image import is_linkable
    from aot.target.selection import load

    path = FOLDER.file(_ENTRY_KEY[2:], b"").parent / _ENTRY_KEY[:2] / _ENTRY_KEY[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    found = ObjectCache(path.parent.parent)
    taken = found.get(_ENTRY_KEY, partial(is_linkable, load(_ENTRY_TARGET)))
    assert (taken is None) != path.exists()  # what is damaged is removed
    return taken
