"""GGUF files that are broken: one clear error each, whatever is wrong."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aot
from aot.errors import AotError, CompileError, UnsupportedError
from aot.frontends.gguf import import_gguf
from aot.frontends.gguf.reader import read_gguf
from tests.support.gguf_models import MODELS, data

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
    message = said(data(replace(SMALL, arch="mamba")))
    assert message == (
        "model: the architecture is not supported, expected gemma2, gemma3, llama, phi3, qwen2, "
        "qwen3:\n  mamba"
    )


def test_block_types_are_listed() -> None:
    at = FILE.index(key("blk.0.attn_q.weight")) + 8 + 19 + 4 + 16
    model = FILE[:at] + struct.pack("<I", 23) + FILE[at + 4 :]
    assert said(model) == (
        "model: block types that are not supported (1), expected BF16, F16, F32, Q4_0, Q4_1, Q4_K, "
        "Q5_0, Q5_1, Q5_K, Q6_K, Q8_0:\n  tensor 'blk.0.attn_q.weight': IQ4_XS"
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
    assert said(renamed) == "model: tensor 'blk.0.ffn_up.weight' is missing"
    at = FILE.index(key("blk.0.ffn_up.weight")) + 8 + 19 + 4
    model = FILE[:at] + struct.pack("<QQ", 4, 16) + FILE[at + 16 :]
    assert said(model) == "model: tensor 'blk.0.ffn_up.weight' has dims [16, 4], expected [8, 8]"


def test_tensors_that_nothing_uses() -> None:
    shape = replace(SMALL, vectors={"other": [1.0, 2.0]})
    assert said(data(shape)) == (
        "model: tensors that its architecture does not have (1):\n  tensor 'other.weight'"
    )


def test_vocabulary_and_head_that_disagree() -> None:
    assert said(data(SMALL, ["a", "b"])) == (
        "model: the vocabulary has 2 tokens, and tensor 'token_embd.weight' has 42 rows"
    )


def test_keys() -> None:
    renamed = patched(key("llama.block_count"), key("llama.block_xxxxx"))
    assert said(renamed) == "model: key 'llama.block_count' is missing"
    at = FILE.index(key("llama.attention.head_count")) + 8 + 26 + 4
    model = FILE[:at] + struct.pack("<I", 0) + FILE[at + 4 :]
    assert said(model) == (
        "model: key 'llama.attention.head_count' is 0, expected a whole number, 1 or more"
    )
    yarn = replace(SMALL, extra={"rope.scaling.type": "yarn"})
    assert said(data(yarn)) == (
        "model: the scaling of positions is not supported, expected linear, longrope or none:\n"
        "  key 'llama.rope.scaling.type' is 'yarn'"
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
