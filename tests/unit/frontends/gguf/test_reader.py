"""GGUF files that are broken: one clear error each, whatever is wrong."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aot
from aot.errors import AotError, CompileError, UnsupportedError
from aot.frontends.gguf import import_gguf, read_gguf
from aot.frontends.gguf.architectures import ARCHITECTURES
from aot.frontends.gguf.block_types import BLOCK_TYPES
from aot.frontends.gguf.keys import NEUTRAL
from aot.frontends.gguf.model import model_of
from aot.ir.text.printer import print_module
from tests.support.gguf_files import data
from tests.support.gguf_models import ENCODERS, MODELS

SMALL = replace(MODELS["llama"], layers=1, width=8, heads=2, groups=1, depth=4, hidden=8)
FILE = data(SMALL)


def said(model: bytes) -> str:
    with pytest.raises(AotError) as caught:
        import_gguf(model)
    assert isinstance(caught.value, CompileError | UnsupportedError)
    return str(caught.value)


def patched(old: bytes, new: bytes, model: bytes = FILE) -> bytes:
    assert model.count(old) == 1 and len(old) == len(new)
    return model.replace(old, new)


def key(name: str) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode()


def test_contents() -> None:
    file = read_gguf(data(SMALL, [f"t{n}" for n in range(SMALL.vocabulary)]))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.attention.head_count"] == 2
    assert file.metadata["tokenizer.ggml.tokens"][:2] == ["t0", "t1"]
    tensor = file.tensors["blk.0.ffn_down.weight"]
    assert tensor.dims == (8, 8) and tensor.type.name == "F32"
    assert tensor.data.nbytes == 256


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(FILE)
    array = read_gguf(path).tensors["output.weight"].data
    while isinstance(array.base, np.ndarray):
        array = array.base
    assert type(array.base.obj).__name__ == "mmap"  # type: ignore[union-attr]


@pytest.mark.parametrize("end", [4, 9, 23, 40, 300, len(FILE) - 1])
def test_truncated(end: int) -> None:
    assert said(FILE[:end]).startswith("model: is truncated")


def test_versions() -> None:
    v1 = FILE[:4] + struct.pack("<I", 1) + FILE[8:]
    advice = "in little-endian order: convert the model again with a current converter"
    assert said(v1) == f"model: is a GGUF file of version 1, expected version 2 or 3 {advice}"
    swapped = FILE[:4] + struct.pack(">I", 3) + FILE[8:]
    assert said(swapped) == (
        "model: is a GGUF file of version 3 in big-endian order, expected version 2 or 3 " + advice
    )
    assert import_gguf(FILE[:4] + struct.pack("<I", 2) + FILE[8:]).main.result_names[-1]


def test_architectures() -> None:
    known = ", ".join(sorted(ARCHITECTURES))
    message = f"model: the architecture is not supported, expected {known}:\n  "
    assert said(data(replace(SMALL, arch="mamba"))) == message + "mamba"
    assert said(data(replace(SMALL, arch="olmoe"))) == message + "olmoe, the nearest is olmo"


def test_block_types_are_listed() -> None:
    at = FILE.index(key("blk.0.attn_q.weight")) + 8 + 19 + 4 + 16
    model = FILE[:at] + struct.pack("<I", 15) + FILE[at + 4 :]
    known = ", ".join(sorted(type.name for type in BLOCK_TYPES.values()))
    assert said(model) == (
        "model: is not as the architecture llama has it (2):\n"
        "  tensor 'blk.0.attn_q.weight' has the block type Q8_K\n"
        f"  block types that are read: {known}"
    )


def test_offsets_outside_the_file() -> None:
    at = FILE.index(key("output.weight")) + 8 + 13 + 4 + 16 + 4
    model = FILE[:at] + struct.pack("<Q", 1 << 40) + FILE[at + 8 :]
    assert said(model).startswith(
        "model: is truncated or its offsets are wrong: tensor 'output.weight' ends at byte 10995"
    )
    model = FILE[:at] + struct.pack("<Q", 3) + FILE[at + 8 :]
    assert said(model) == "model: tensor 'output.weight' is at offset 3, no multiple of 32"


def test_tensors_that_are_missing_or_of_other_shapes() -> None:
    renamed = patched(key("blk.0.ffn_up.weight"), key("blk.0.ffn_xx.weight"))
    missing = (
        "  tensor 'blk.0.ffn_xx.weight' is not read, the nearest that is: 'blk.0.ffn_up.weight'\n"
        "  tensor 'blk.0.ffn_up.weight' is missing"
    )
    assert said(renamed) == f"model: is not as the architecture llama has it (2):\n{missing}"
    ended = patched(key("blk.0.ffn_up.weight"), key("blk.0.ffn_up.weighs"))
    assert said(ended) == f"model: is not as the architecture llama has it (2):\n{missing}".replace(
        "ffn_xx.weight", "ffn_up.weighs"
    )
    at = FILE.index(key("blk.0.ffn_up.weight")) + 8 + 19 + 4
    model = FILE[:at] + struct.pack("<QQ", 4, 16) + FILE[at + 16 :]
    assert said(model) == (
        "model: is not as the architecture llama has it (1):\n"
        "  tensor 'blk.0.ffn_up.weight' has dims [16, 4], expected [8, 8]"
    )


def test_everything_that_nothing_reads_is_named_at_once() -> None:
    """Keys, tensors, shapes and block types in one message; neutral values are no difference."""
    extra = {
        "attention.clamp_kqv": 4.0,
        "rope.freq_bass": 500.0,
        "expert_count": 0,
        "attention.causal": True,
        "vocab_size": 42,
    }
    model = data(replace(SMALL, extra=extra, vectors={"other": [1.0, 2.0]}))
    at = model.index(key("blk.0.ffn_up.weight")) + 8 + 19 + 4
    model = model[:at] + struct.pack("<QQ", 4, 16) + model[at + 16 :]
    assert said(model) == (
        "model: is not as the architecture llama has it (4):\n"
        "  key 'llama.attention.clamp_kqv' is not read\n"
        "  key 'llama.rope.freq_bass' is not read, the nearest that is: 'llama.rope.freq_base'\n"
        "  tensor 'other.weight' is not read\n"
        "  tensor 'blk.0.ffn_up.weight' has dims [16, 4], expected [8, 8]"
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_key_that_a_part_names_is_read(name: str) -> None:
    """And no other: a view of a part's keys gives no others."""
    shape = next(s for s in (MODELS | ENCODERS).values() if s.arch == name)
    model = model_of(read_gguf(data(shape)))
    named = set(ARCHITECTURES[name].key_names())
    only_with = {n for n in named if n.startswith("rope.scaling.yarn") or n == "rope.scale_linear"}
    only_with |= {"rope.freq_base_swa", "attention.sliding_window_pattern"}
    assert model.keys.read - {"expert_count"} <= named
    assert named - model.keys.read <= only_with


@pytest.mark.parametrize("key", sorted(set(NEUTRAL) - {"attention.layer_norm_rms_epsilon"}))
def test_neutral_keys_change_nothing(key: str) -> None:
    """They may be there, with any value or one."""
    value = {None: 7}.get(NEUTRAL[key], NEUTRAL[key])
    plain, model = data(SMALL), data(replace(SMALL, extra={key: value}))
    assert print_module(import_gguf(plain)) == print_module(import_gguf(model))
    if NEUTRAL[key] is not None:
        other = {"extra": {key: not value if isinstance(value, bool) else value + 3}}
        assert f"llama.{key}' is" in said(data(replace(SMALL, **other)))


def test_vocabulary_and_head_that_disagree() -> None:
    assert said(data(SMALL, ["a", "b"])) == (
        "model: the vocabulary has 2 tokens, and tensor 'token_embd.weight' has 42 rows"
    )


def test_keys() -> None:
    renamed = patched(key("llama.block_count"), key("llama.block_cuont"))
    assert said(renamed) == (
        "model: key 'llama.block_count' is missing, the nearest that there is: 'llama.block_cuont'"
    )
    at = FILE.index(key("llama.attention.head_count")) + 8 + 26 + 4
    model = FILE[:at] + struct.pack("<I", 0) + FILE[at + 4 :]
    assert said(model) == (
        "model: key 'llama.attention.head_count' is 0, expected a whole number, 1 or more"
    )
    other = replace(SMALL, extra={"rope.scaling.type": "llama3"})
    assert said(data(other)) == (
        "model: key 'llama.rope.scaling.type' is 'llama3', expected none, linear, yarn or longrope"
    )
    experts = replace(SMALL, extra={"expert_count": 8})
    assert said(data(experts)) == (
        "model: mixtures of experts are not supported:\n  key 'llama.expert_count' is 8"
    )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    empty = tmp_path / "m.gguf"
    empty.touch()
    with pytest.raises(CompileError) as caught:
        aot.compile(empty)
    assert str(caught.value) == f"{empty}: is no GGUF file: it does not begin with GGUF"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_changed_bytes_are_read_or_refused(random: st.DataObject) -> None:
    """What is before the tensors, byte by byte: never another error, and never much memory."""
    model = bytearray(FILE)
    end = FILE.index(key("output_norm.weight")) + 50
    for _ in range(random.draw(st.integers(1, 3))):
        at = random.draw(st.integers(4, end))
        model[at] = random.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    try:
        import_gguf(bytes(model))
    except AotError as error:
        assert str(error).startswith(("model: ", "blk.", "rope", "output", "token"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"extra": {"rope.freq_base": "small"}},
            "key 'llama.rope.freq_base' is 'small', expected a number",
        ),
        (
            {"extra": {"rope.scaling.factor": -1.0}},
            "key 'llama.rope.scaling.factor' is -1.0, expected a number, 0 or more",
        ),
        (
            {"extra": {"rope.scaling.attn_factor": 0.0}},
            "key 'llama.rope.scaling.attn_factor' is 0.0, expected a number above 0",
        ),
        (
            {"heads": 3, "groups": 2},
            "key 'llama.attention.head_count_kv' is 2, expected a divisor of 3, the heads",
        ),
        (
            {"rotated": 3},
            "key 'llama.rope.dimension_count' is 3, expected an even number up to 4, a key's "
            "elements",
        ),
        (
            {"vectors": {"rope_freqs": [0.0, 1.0]}},
            "tensor 'rope_freqs.weight' has factors of 0 or NaN",
        ),
    ],
)
def test_numbers_that_cannot_be(change: dict[str, Any], message: str) -> None:
    assert said(data(replace(SMALL, **change))) == f"model: {message}"


def test_positions_that_are_not_scaled() -> None:
    plain = replace(SMALL, extra={"rope.scaling.type": "none", "rope.scaling.factor": 4.0})
    first, second = (import_gguf(data(shape)) for shape in (SMALL, plain))
    assert print_module(first) == print_module(second)


def test_blocks_of_rows_and_of_vectors() -> None:
    at = FILE.index(key("blk.0.attn_q.weight")) + 8 + 19 + 4 + 16
    model = FILE[:at] + struct.pack("<I", 2) + FILE[at + 4 :]
    assert said(model) == (
        "model: tensor 'blk.0.attn_q.weight' has rows of 8 elements, expected a multiple of 32, "
        "the block of Q4_0"
    )
    wide = data(replace(SMALL, width=32, heads=8, groups=4))
    at = wide.index(key("output_norm.weight")) + 8 + 18 + 4 + 8
    assert said(wide[:at] + struct.pack("<I", 8) + wide[at + 4 :]) == (
        "model: is not as the architecture llama has it (1):\n"
        "  tensor 'output_norm.weight' is Q8_0, expected floats"
    )


U32, STRING, LIST = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def listed(kind: int, *values: bytes) -> bytes:
    return struct.pack("<IIQ", LIST, kind, len(values)) + b"".join(values)


def u32(value: int) -> bytes:
    return struct.pack("<II", U32, value)


def header(*pairs: tuple[str, bytes], tensors: bytes = b"", count: int = 0) -> bytes:
    """A file of keys, and of tensors as they are declared."""
    found = b"".join(text(name) + value for name, value in pairs)
    return b"GGUF" + struct.pack("<IQQ", 3, count, len(pairs)) + found + tensors + b"\0" * 256


def declared(name: str, *dims: int) -> bytes:
    rank = struct.pack("<I", len(dims))
    return text(name) + rank + struct.pack(f"<{len(dims)}QIQ", *dims, 0, 0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (header(("a", u32(1)), ("a", u32(2))), "has key 'a' twice"),
        (
            header(("general.alignment", u32(24))),
            "general.alignment is 24, expected a power of two",
        ),
        (
            header(("a", listed(STRING, text("b"), struct.pack("<Q", 1 << 40)))),
            "is truncated: key 'a' ends after the end of the file",
        ),
        (header(("a", struct.pack("<I", 99))), "key 'a' is of the unknown type 99"),
        (header(tensors=declared("t", 2) * 2, count=2), "has tensor 't' twice"),
        (header(tensors=declared("t", 2, 0), count=1), "tensor 't' has dims [0, 2]: one is 0"),
        (
            header(tensors=declared("t", 1, 1, 1, 1, 1), count=1),
            "tensor 't' has 5 dims, expected 1 to 4",
        ),
        (header(("", u32(1))), "a key has a name of 0 characters"),
    ],
)
def test_what_is_before_the_tensors(model: bytes, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        read_gguf(model)
    assert str(caught.value) == f"model: {message}"


def test_lists_of_lists() -> None:
    rows = [listed(STRING, text("b"))[4:], listed(U32, struct.pack("<I", 7))[4:]]
    assert read_gguf(header(("a", listed(LIST, *rows)))).metadata == {"a": [["b"], [7]]}


def test_a_number_for_each_layer() -> None:
    """One for all where they are equal."""
    name = "llama.attention.head_count_kv"
    at = FILE.index(key(name)) + 8 + len(name)

    def with_counts(*counts: int) -> bytes:
        return FILE[:at] + listed(U32, *(struct.pack("<I", n) for n in counts)) + FILE[at + 8 :]

    assert said(with_counts(1, 2)) == (
        "model: key 'llama.attention.head_count_kv' is [1, 2], expected a number, or 1 of them, "
        "one for each layer"
    )


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("block_count", "the tensors of the file"),
        ("embedding_length", "by the bytes of the tensors"),
        ("attention.head_count", "by the bytes of the tensors"),
        ("attention.head_count_kv", "by the bytes of the tensors"),
        ("feed_forward_length", "by the bytes of the tensors"),
    ],
)
def test_counts_are_those_of_the_file(name: str, most: str) -> None:
    """A number of metadata makes no layers and no heads that there are no weights for."""
    at = FILE.index(key(f"llama.{name}")) + 8 + len(f"llama.{name}") + 4
    message = said(FILE[:at] + struct.pack("<I", 2_000_000_000) + FILE[at + 4 :])
    assert re.fullmatch(
        rf"model: key 'llama\.{name}' is 2000000000, expected at most \d+, {most}", message
    )


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        read_gguf(tmp_path)
    assert str(caught.value) == f"cannot read {tmp_path}: is a directory"


def test_a_vocabulary_that_is_refused_names_the_file() -> None:
    tokens = [f"t{n}" for n in range(SMALL.vocabulary)]
    renamed = data(SMALL, tokens).replace(text("no_vocab"), text("sillymod"))
    assert said(renamed) == (
        "model: the tokeniser 'sillymod' is not supported, there are\n"
        "  bert\n  gemma4\n  gpt2\n  llama\n  rwkv\n  t5"
    )
    # as long as the other name, so that tensors stay where they are
    older = data(SMALL, tokens).replace(text("no_vocab"), struct.pack("<Q", 8) + b"llama\0\0\0")
    assert said(older).startswith("model: the tokeniser 'llama")
