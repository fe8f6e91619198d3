"""Block types of GGUF: the gguf package's own decoding of random bytes is the oracle."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from aot.frontends.gguf.block_types import BLOCK_TYPES, type_name
from aot.ir.record import Call
from aot.ir.types import DType, TensorType
from aot.ops.blocked import MATMUL_BLOCKED, weights
from tests.support.gguf_files import HALVES, blocks, uniform

QUANTISED = [n for n, type in BLOCK_TYPES.items() if type.codes is not None]


def decoded(codes: Any) -> np.ndarray[Any, Any]:
    """The weights [columns, k] that the operands of a product say."""
    operands = codes.operands()
    types: list[TensorType | None] = [TensorType(DType.F32, (1, codes.blocks.k))]
    types += [None if a is None else TensorType(DType.of(a), a.shape) for a in operands]
    call = MATMUL_BLOCKED.check(types, codes.attrs(), "")
    assert isinstance(call, Call)
    return weights(call, [None, *operands]).T


@pytest.mark.parametrize("number", QUANTISED, ids=type_name)
def test_blocks_are_what_the_package_says(number: int) -> None:
    type = BLOCK_TYPES[number]
    kind = Kind(number)
    assert (type.elements, type.bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert type.codes is not None
    array = uniform(number, (19, 3 * type.elements))
    raw = blocks(array, kind)
    wanted = gguf.quants.dequantize(raw, kind)
    assert decoded(type.codes(raw)) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("number", QUANTISED, ids=type_name)
def test_all_bytes_count(number: int) -> None:
    """Random bytes, but for scales that are no numbers."""
    type = BLOCK_TYPES[number]
    assert type.codes is not None
    rng = np.random.default_rng(number)
    raw = rng.integers(0, 256, (5, 4 * type.bytes), dtype=np.uint8)
    if type.name == "MXFP4":
        raw[:, :: type.bytes] = raw[:, :: type.bytes] // 2 + 64  # f32 has no larger scales
    for block in range(4):
        for place in HALVES[Kind(number)]:
            at = block * type.bytes + place
            raw[:, at : at + 2] = rng.random(5).astype(np.float16).view(np.uint8).reshape(5, 2)
    wanted = gguf.quants.dequantize(raw, Kind(number))
    np.testing.assert_allclose(decoded(type.codes(raw)), wanted, rtol=1e-6, atol=1e-7)


def test_names_of_block_types() -> None:
    names = {n: type.name for n, type in BLOCK_TYPES.items()}
    assert names == {n: Kind(n).name for n in names}
    assert type_name(Kind.IQ4_XS) == "IQ4_XS"
    assert type_name(1000) == "block type 1000"
