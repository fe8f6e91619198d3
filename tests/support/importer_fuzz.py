"""Damaged files of each format that users give, models above all, and what is made of them.

    python tests/support/importer_fuzz.py FORMAT SEED FIRST COUNT [SECONDS]

A model is taken apart into a tree of lists, dicts, numbers and texts, which has everything that its
file says. Input n of a seed is the same in any process: the first inputs change each field of each
small model once, all others a few things at random, or bytes. It is imported, which must end in a
module or in one of the compiler's errors, in 5 seconds of CPU, within the memory that an import may
take. Whatever else happens is printed, a line of JSON each.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from tests.support import text_formats as texts
from tests.support.onnx_mutator import damage_bytes

Random = random.Random
Tree = Any  # of dicts, lists, numbers, texts and bytes
Place = tuple[Any, Any]  # a dict or list, and a key or index in it

MOST_SECONDS = 5.0
MOST_ITEMS = 64  # of a list whose items are changed each
INTS = (0, 1, -1, 2, 3, 7, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, 1 << 62)
INTS += ((1 << 63) - 1, -(1 << 63), 1 << 64)
FLOATS = (0.0, -1.0, 0.5, float("nan"), float("inf"), -float("inf"), 1e30, 1e-30)
TEXTS = ("", "x", "a" * 3000, "\0", "é\n", "../../etc/passwd", "__class__", "x=1", "-1", "1e999")
TEXTS += (
    "__import__('os').system('true')",
    "4611686018427387904",
    "%s",
    "'",
    '"',
    "[",
    "Infinity",
    "torch.ops.aten.add.Tensor",
)


@dataclass(frozen=True)
class Format:
    """How models of a format are taken apart.

    Attributes:
        seeds: small models.
        taken: the tree of a model.
        made: the model of a tree; it may raise where a tree is none.
        read: what reads it; `read_model` does what is None.
    """

    seeds: Callable[[], list[bytes]]
    taken: Callable[[bytes], Tree]
    made: Callable[[Tree], bytes]
    read: Callable[[bytes], Any] | None = None


# ---- ONNX: the fields of protobuf ----


def _onnx_seeds() -> list[bytes]:
    from tests.support import module_seeds
    from tests.support.control_models import CONTROLLED

    own = [graph() for graph, _ in module_seeds.GRAPHS.values()]
    return [*own, *(case.model().SerializeToString() for case in CONTROLLED.values())]


def _onnx_taken(data: bytes) -> Tree:
    import onnx
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    return MessageToDict(onnx.load_from_string(data), preserving_proto_field_name=True)


def _onnx_made(tree: Tree) -> bytes:
    import onnx
    from google.protobuf.json_format import ParseDict

    return ParseDict(tree, onnx.ModelProto(), ignore_unknown_fields=True).SerializeToString()


# ---- TFLite: the fields of tables ----


def _tflite_seeds() -> list[bytes]:
    from tests.support import tflite_cases, tflite_nets

    made = [case.make()[0] for case in tflite_cases.CASES[::6]]
    return [*(data for data in made if len(data) < 1 << 14), tflite_nets.quantised_net()]


def _tflite_taken(data: bytes) -> Tree:
    from aot.frontends.tflite.flatbuffer import Flatbuffer, Table
    from aot.frontends.tflite.schema import TABLES

    def taken(value: Any) -> Tree:
        if isinstance(value, Table):
            fields = {field.name: taken(getattr(value, field.name)) for field in TABLES[value.kind]}
            return {"": value.kind, **{k: v for k, v in fields.items() if v is not None}}
        if isinstance(value, np.ndarray):
            return value.tobytes() if value.dtype == np.uint8 else value.tolist()
        return [taken(one) for one in value] if isinstance(value, list) else value

    return taken(Flatbuffer(memoryview(data)).root("Model"))


def _tflite_made(tree: Tree) -> bytes:
    from tests.support.tflite_models import serialised

    def plain(value: Tree) -> Tree:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return list(value) if isinstance(value, bytes) else value

    return serialised(plain(tree))


# ---- GGUF: keys and tensors ----

_GGUF = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


def _gguf_seeds() -> list[bytes]:
    from dataclasses import replace

    from tests.support import gguf_files, gguf_models

    models = gguf_models.MODELS
    tokens = [f"t{n}" for n in range(models["llama"].vocabulary)]
    made = [gguf_files.data(replace(models["llama"], layers=1), tokens)]
    made += [gguf_files.data(replace(models[n], layers=1)) for n in ("phi3", "gemma2", "qwen3")]
    made += [gguf_files.data(models[n]) for n in ("gemma4", "deci", "mistral3_ramp", "cohere2")]
    made += [gguf_files.data(gguf_models.ENCODERS[n]) for n in ("jina-bert-v2", "t5encoder")]
    return made


def _gguf_taken(data: bytes) -> Tree:
    at = 4

    def number(code: str) -> Any:
        nonlocal at
        (found,) = struct.unpack_from(f"<{code}", data, at)
        at += struct.calcsize(f"<{code}")
        return found

    def text() -> bytes:
        nonlocal at
        length = number("Q")
        at += length
        return data[at - length : at]

    def value(kind: int) -> Tree:
        if kind in _GGUF:
            return number(_GGUF[kind])
        if kind == 8:
            return text()
        inner, count = number("I"), number("Q")
        return {"kind": inner, "items": [value(inner) for _ in range(count)]}

    version, tensors, keys = number("I"), number("Q"), number("Q")
    rows = []
    for _ in range(keys):
        name, kind = text(), number("I")
        rows.append({"name": name, "kind": kind, "value": value(kind)})
    made = []
    for _ in range(tensors):
        name = text()
        dims = [number("Q") for _ in range(number("I"))]
        made.append({"name": name, "dims": dims, "type": number("I"), "offset": number("Q")})
    rest = data[at + -at % 32 :]
    counts = {"version": version, "more_tensors": 0, "more_keys": 0}
    return counts | {"keys": rows, "tensors": made, "data": rest}


def _gguf_made(tree: Tree) -> bytes:
    def text(value: Any) -> bytes:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        return struct.pack("<Q", len(raw)) + raw

    def value(kind: int, given: Tree) -> bytes:
        if kind in _GGUF:
            return struct.pack(f"<{_GGUF[kind]}", given)
        if kind == 9:
            items = given["items"]
            head = struct.pack("<IQ", given["kind"], len(items))
            return head + b"".join(value(given["kind"], one) for one in items)
        return text(given)

    keys, tensors = tree["keys"], tree["tensors"]
    counts = len(tensors) + tree["more_tensors"], len(keys) + tree["more_keys"]
    out = b"GGUF" + struct.pack("<IQQ", tree["version"], *counts)
    for key in keys:
        out += text(key["name"]) + struct.pack("<I", key["kind"]) + value(key["kind"], key["value"])
    for one in tensors:
        out += text(one["name"]) + struct.pack("<I", len(one["dims"]))
        out += struct.pack(f"<{len(one['dims'])}QIQ", *one["dims"], one["type"], one["offset"])
    return out + b"\0" * (-len(out) % 32) + bytes(tree["data"])


# ---- .pt2: entries, and JSON in them ----


def _pt2_seeds() -> list[bytes]:
    import torch

    from tests.support.torch_archives import saved

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("total", torch.ones(4))
            self.table = torch.arange(4.0)

        def forward(self, x: Any) -> Any:
            self.total.add_(1)
            return self.layer(x) + self.table

    class Lengths(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            n = x.shape[0]
            return {"y": torch.cat([x, x[: n // 2 * 2]]), "n": n // 3}

    class Trees(torch.nn.Module):
        def forward(self, x: Any, *, pair: Any) -> Any:
            return [*torch.topk(x, 2)], pair[0].amax()

    class Branches(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))

    class Places(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nonzero(x)

    rows, row = (torch.zeros(8, 4),), (torch.zeros(3),)
    shapes = {"x": {0: torch.export.Dim.DYNAMIC(min=4, max=99)}}
    # Small ones each: torch takes a time to decompose them that grows with their ops.
    made = [
        torch.export.export(Layers(), rows),
        torch.export.export(Lengths(), rows, dynamic_shapes=shapes),
        torch.export.export(Trees(), rows, {"pair": [torch.zeros(3)]}),
        torch.export.export(Branches(), row),
        torch.export.export(Places(), row),
    ]
    return [saved(program) for program in made]


def _keep_torch_tables() -> None:
    """Has torch write its tables of decompositions once, not twice for each program.

    Which ops these hold depends on no program, and writing them takes three quarters of the time
    in which torch decomposes a small one.
    """
    from contextlib import nullcontext

    import torch.export.exported_program as exported

    from aot.frontends.torch import exporting

    tables = exported._split_decomp_table_to_cia_and_python_decomp(
        exporting._decompositions().copy()
    )
    exported._override_composite_implicit_decomp(tables[0]).__enter__()
    exported._override_composite_implicit_decomp = lambda _: nullcontext()
    exported._split_decomp_table_to_cia_and_python_decomp = lambda _: tuple(
        table.copy() for table in tables
    )


_SKIPPED = ("stack_trace", "torch_fn", "nn_module_stack")  # of nodes, as data that changes nothing


def _pt2_taken(data: bytes) -> Tree:
    from tests.support.torch_archives import entries_of

    def opened(value: Tree) -> Tree:
        if isinstance(value, dict):
            return {k: opened(v) for k, v in value.items() if k not in _SKIPPED}
        if isinstance(value, list):
            return [opened(v) for v in value]
        if isinstance(value, str) and value[:1] in ("[", "{"):
            return {"json in a text": opened(json.loads(value))}
        return value

    return {
        name: opened(json.loads(content)) if name.endswith(".json") else content
        for name, content in entries_of(data).items()
        if "sample_inputs" not in name
    }


def _pt2_made(tree: Tree) -> bytes:
    from tests.support.torch_archives import packed

    def closed(value: Tree) -> Tree:
        if isinstance(value, dict):
            if set(value) == {"json in a text"}:
                return json.dumps(closed(value["json in a text"]))
            return {str(k): closed(v) for k, v in value.items()}
        if isinstance(value, list):
            return [closed(v) for v in value]
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    entries = {
        name: bytes(content) if isinstance(content, bytes) else json.dumps(closed(content)).encode()
        for name, content in tree.items()
    }
    return packed(entries)


FORMATS: dict[str, Format] = {
    "onnx": Format(_onnx_seeds, _onnx_taken, _onnx_made),
    "tflite": Format(_tflite_seeds, _tflite_taken, _tflite_made),
    "gguf": Format(_gguf_seeds, _gguf_taken, _gguf_made),
    "pt2": Format(_pt2_seeds, _pt2_taken, _pt2_made),
    # what users give beside models
    "text": Format(texts.text_seeds, texts.text_taken, texts.text_made, texts.text_read),
    "tokeniser": Format(texts.tokeniser_seeds, json.loads, texts.json_made, texts.tokeniser_read),
    "target": Format(texts.target_seeds, texts.toml_taken, texts.toml_made, texts.target_read),
    "batch": Format(texts.batch_seeds, texts.toml_taken, texts.toml_made, texts.batch_read),
    "tuning": Format(texts.tuning_seeds, texts.tuning_taken, texts.tuning_made, texts.tuning_read),
    "entry": Format(texts.entry_seeds, texts.entry_taken, texts.entry_made, texts.entry_read),
    "array": Format(texts.array_seeds, texts.array_taken, texts.array_made, texts.array_read),
}


# ---- changes ----


def places(tree: Tree) -> Iterator[Place]:
    """All places in a tree, of long lists the first items."""
    keys: Any = ()
    if isinstance(tree, dict):
        keys = list(tree)
    elif isinstance(tree, list):
        keys = range(min(len(tree), MOST_ITEMS))
    for key in keys:
        yield tree, key
        yield from places(tree[key])


def change(tree: Tree, place: Place, rng: Random) -> None:
    """Changes what is in one place."""
    holder, key = place
    if not (key in holder if isinstance(holder, dict) else key < len(holder)):
        return  # an earlier change has removed it
    old = holder[key]
    how = rng.randrange(12)
    if how == 0:
        del holder[key]
    elif how == 1:
        other = rng.choice(list(places(tree)))
        holder[key] = copy.deepcopy(other[0][other[1]])
    elif how == 2:
        holder[key] = rng.choice((None, True, 0, "", [], {}, 1.5))
    elif isinstance(old, bool):
        holder[key] = not old
    elif isinstance(old, int):
        holder[key] = rng.choice((*INTS, old + 1, old - 1, -old, old * 2))
    elif isinstance(old, float):
        holder[key] = rng.choice(FLOATS)
    elif isinstance(old, str):
        texts = [o[k] for o, k in places(tree) if isinstance(o[k], str)]
        holder[key] = rng.choice((*TEXTS, rng.choice(texts or [old]), old + "x", old[:-1]))
    elif isinstance(old, bytes):
        cut = old[: rng.randrange(len(old) + 1)]
        holder[key] = rng.choice((cut, old + cut, damage_bytes(old, rng) if old else b"\xff"))
    elif isinstance(old, list):
        _change_list(old, rng)
    elif isinstance(old, dict) and old:
        one = rng.choice(list(old))
        old[rng.choice((*TEXTS, one, f"{one}x"))] = copy.deepcopy(old[one])


def _change_list(row: list[Any], rng: Random) -> None:
    how = rng.randrange(4)
    if how == 0 and row:
        row.extend(copy.deepcopy(row[:MOST_ITEMS]))
    elif how == 1:
        rng.shuffle(row)
    elif how == 2 and row:
        row.insert(rng.randrange(len(row)), copy.deepcopy(rng.choice(row)))
    else:
        del row[rng.randrange(len(row) + 1) :]


@cache
def _seeds(name: str) -> list[tuple[bytes, Tree, int]]:
    """The seeds, with their trees and how many places these have."""
    found = FORMATS[name]
    rows = [(data, found.taken(data)) for data in found.seeds()]
    for data, tree in rows:
        found.made(copy.deepcopy(tree))  # it can be put together again
        assert data
    return [(data, tree, sum(1 for _ in places(tree))) for data, tree in rows]


MOST_BYTES = 64 << 20  # of a file: to read more takes long whatever is in it


def damaged(name: str, seed: int, number: int) -> bytes:
    """Input `number` of a seed."""
    seeds = _seeds(name)
    rng = Random(f"{name} {seed} {number}")
    every = sum(count for _, _, count in seeds)
    data, tree, _ = rng.choice(seeds)
    places_of: list[int] = []
    if number < every:
        at = (number * 7919 + seed) % every  # of neighbours each is far away
        for data, tree, count in seeds:  # noqa: B007 - the one that has it
            if at < count:
                places_of = [at]
                break
            at -= count
    elif rng.randrange(6) == 0:
        return damage_bytes(data, rng)
    for _ in range(20):
        made = copy.deepcopy(tree)
        all_places = list(places(made))
        for place in places_of or rng.choices(range(len(all_places)), k=rng.choice((1, 1, 2, 4))):
            change(made, all_places[place], rng)
        try:
            file = FORMATS[name].made(made)
        except Exception:  # what no file can say
            continue
        if len(file) <= MOST_BYTES:
            return file
    return damage_bytes(data, rng)


# ---- what importers make of them ----


class HangError(BaseException):
    """An import takes too long."""


def _stop(*_: object) -> None:
    raise HangError


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) << 10


_RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")


_run: list[str] = []


def _watch(event: str, arguments: Any) -> None:
    """Notes what runs a program: no model may have one run."""
    if event in _RUNS:
        _run.append(f"{event} of {str(arguments)[:200]}")


def attempt(name: str, data: bytes) -> dict[str, Any] | None:
    """What happens that must not; None where the model is taken or refused."""
    from aot.driver.pipeline import read_model
    from aot.errors import CompileError, UnsupportedError
    from aot.ir.limits import limit_of
    from aot.options import CompileOptions

    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        with np.errstate(all="ignore"):
            read = FORMATS[name].read
            _ = read(data) if read else read_model(data, CompileOptions())
    except (CompileError, UnsupportedError) as error:
        if len(str(error)) > 20_000 + 8 * len(data):  # what a file says may be quoted
            return {"error": "a long message", "message": str(error)[:500]}
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "/aot/" in f.filename] or frames
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        message = str(error)[:500]
        return {"error": type(error).__name__, "message": message, "where": place}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if _run:
        return {"error": "a program is run", "message": _run.pop()}
    taken = _resident("VmHWM") - before
    if taken > limit_of(len(data), 0):
        return {"error": "memory", "message": f"{taken >> 20} MiB"}
    return None


def run(name: str, seed: int, first: int, count: int, seconds: float) -> None:
    """Prints a line of JSON for each failure, and one that says how many inputs there were."""
    import warnings

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _stop)
    _seeds(name)
    if name == "pt2":
        _keep_torch_tables()
    for data, _, _ in _seeds(name):
        found = attempt(name, data)  # which imports what importers need
        assert found is None, found
    sys.addaudithook(_watch)
    end = time.monotonic() + seconds if seconds else float("inf")
    number = first
    stopped: list[Any] = []  # by SIGTERM: how far it came is said all the same
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(_))
    while number < first + count and time.monotonic() < end and not stopped:
        found = attempt(name, damaged(name, seed, number))
        if found is not None:
            print(json.dumps({"format": name, "seed": seed, "number": number, **found}), flush=True)
        number += 1
    print(json.dumps({"inputs": number - first}), flush=True)


if __name__ == "__main__":
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, write_through=True)
    chosen, *numbers = sys.argv[1:]
    seed, first, count, *more = map(int, numbers)
    run(chosen, seed, first, count, *(more or [0]))
