"""The table of element types: its rows fit together, and whoever restates one says the same."""

from __future__ import annotations

import numpy as np
import pytest

from aot.ir.dim_parser import parse
from aot.ir.dims import substitute
from aot.ir.record import ANY, FLOATS, INTEGERS, SIGNED, STORED_ONLY, UNSIGNED
from aot.ir.types import DType, DTypeFacts, DTypeKind, Layout, TensorType
from aot.link.reader import DTYPE_CODES
from aot.runtime import tensors

STORED = [d for d in DType if d.is_stored]


@pytest.mark.parametrize("dtype", list(DType))
def test_a_row_fits_numpy_and_the_other_rows(dtype: DType) -> None:
    assert dtype.numpy.itemsize == dtype.bytes == dtype.bits // 8
    kinds = {"f": DTypeKind.FLOAT, "i": DTypeKind.SIGNED, "u": DTypeKind.UNSIGNED}
    assert (dtype.bits_as is not dtype) == dtype.is_storage_only
    assert dtype.bits_as.bits == dtype.bits
    if dtype.is_stored:
        assert DType.of(np.zeros((), dtype.numpy)) is dtype
    if dtype.is_stored and not dtype.is_storage_only:  # of which numpy knows no kind
        assert kinds.get(dtype.numpy.kind, DTypeKind.BOOL) is dtype.kind
    for other, is_narrower in ((dtype.widens_to, True), (dtype.narrows_to, False)):
        if other is not None:
            assert other.kind is dtype.kind
            assert other.bits == 32
            assert (dtype.bits < other.bits) == is_narrower
    assert dtype.accumulator.kind is dtype.kind
    assert dtype.accumulator.accumulator is dtype.accumulator


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_packed])
def test_a_packed_word_is_full_of_its_parts(dtype: DType) -> None:
    assert dtype.kind is DTypeKind.PACKED
    assert dtype.part.is_integer
    assert dtype.parts * dtype.part.bits == dtype.bits == 32


def test_what_needs_another_dtype_has_one() -> None:
    for dtype in FLOATS | INTEGERS:
        assert (dtype.bits < 32) == (dtype.widens_to is not None)
        assert (dtype.bits > 32) == (dtype.narrows_to is not None)


def test_kinds_part_the_dtypes() -> None:
    parts = [FLOATS, SIGNED, UNSIGNED, STORED_ONLY, {DType.BOOL}]
    assert frozenset().union(*parts) == ANY == set(STORED)
    assert sum(map(len, parts)) == len(ANY)
    assert {d for d in STORED if d.is_integer} == INTEGERS
    assert {d for d in STORED if d.is_signed} == SIGNED
    assert {d for d in STORED if d.is_float} == FLOATS | STORED_ONLY


def test_the_loader_has_the_codes_and_elements_of_the_file() -> None:
    """The loader comes without the compiler, so it has a table of its own."""
    assert dict(enumerate(tensors.DTYPES)) == {code: str(d) for d, code in DTYPE_CODES.items()}
    assert {str(d): d.numpy for d in STORED} == tensors.NUMPY


@pytest.mark.parametrize(
    ("bits", "block", "count", "expected"),
    [(32, 1, 5, 20), (16, 1, 0, 0), (4, 2, 6, 3), (4, 2, 7, 4), (2, 4, 9, 3), (6, 4, 5, 6)],
)
def test_elements_of_less_than_a_byte_fill_blocks(
    bits: int, block: int, count: int, expected: int
) -> None:
    facts = DTypeFacts(DTypeKind.UNSIGNED, bits, "uint8", is_storage_only=True, block=block)
    assert facts.storage_bytes(count) == expected
    found = facts.storage_bytes(parse("N"))
    assert substitute(found, {"N": count}) == expected


def test_elements_that_share_bytes_have_no_address() -> None:
    facts = DTypeFacts(DTypeKind.UNSIGNED, 4, "uint8", block=2)
    with pytest.raises(ValueError, match="^elements of 4 bits share bytes$"):
        _ = facts.element_bytes


@pytest.mark.parametrize(
    ("layout", "span"),
    [
        (None, 15),
        (Layout(splits=((1, 4),)), 24),
        (Layout(strides=(8, 1)), 21),
        (Layout(strides=(1, 4)), 19),
    ],
)
def test_a_type_takes_what_lies_from_its_first_element_to_its_last(
    layout: Layout | None, span: int
) -> None:
    for dtype in STORED:
        type = TensorType(dtype, (3, 5), layout)
        assert type.span == span
        assert type.bytes == span * dtype.bytes
