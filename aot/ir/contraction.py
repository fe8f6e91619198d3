"""Contractions: the roles of their operands' and results' dims.

A contraction multiplies elements of two operands and sums the products. Its record says once which
dims do what (`OpRecord.contraction`), and everything that plans, prices, packs or merges
contractions asks that, never which op it is. Owns no cost and no tile.
"""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir.dims import Dim, floor_divide, product
from aot.ir.schedule import word_terms
from aot.ir.types import DType, TensorType

# the largest magnitude of weights of which two products with bytes of a dtype fit 16 bits together
MOST_NARROW = {DType.U8: 64, DType.I8: 127}


def has_narrow_products(left: DType, max_weight: int) -> bool:
    """Whether two products of `left` numbers by 8-bit weights, of magnitude at most `max_weight`,
    always fit 16 bits in sum."""
    return max_weight <= MOST_NARROW.get(left, -1)


@dataclass(frozen=True)
class Window:
    """One axis along which the right side slides over the left one.

    Attributes:
        axis: the left side's dim, and the result's, that it slides along.
        tap: the right side's dim that counts its taps.
        kernel: how many taps there are.
        stride: steps between the windows of neighbouring elements of the result.
        dilation: steps between neighbouring taps.
        begin, end: how many elements of padding stand before and behind the left side.
    """

    axis: int
    tap: int
    kernel: Dim
    stride: int = 1
    dilation: int = 1
    begin: Dim = 0
    end: Dim = 0

    @property
    def is_padded(self) -> bool:
        """Whether a tap may be outside of the left side."""
        return self.begin != 0 or self.end != 0


@dataclass(frozen=True)
class Scales:
    """The quantisation of a factor: a stored number means `(stored - zero_point) * scale`.

    Attributes:
        operand: number of the operand that holds the scales.
        zero_points: number of the operand that holds the zero points; None where they are 0.
        block: how many neighbours along the summed dim share a scale; None where all of them do.
    """

    operand: int
    zero_points: int | None = None
    block: Dim | None = None


@dataclass(frozen=True)
class Factor:
    """One of the two multiplied operands, with the role of each of its dims.

    Attributes:
        operand: its number.
        type: its type.
        batch: dims that count products side by side, which broadcast against the other factor's.
        own: dims that it alone varies along: the left side's rows, the right side's columns.
        summed: the dim, windows aside, that is summed over.
        taps: dims that count taps of windows; the left side has none.
        scales: of a factor that is stored quantised.
    """

    operand: int
    type: TensorType
    batch: tuple[int, ...]
    own: tuple[int, ...]
    summed: int
    taps: tuple[int, ...] = ()
    scales: Scales | None = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype


@dataclass(frozen=True)
class ContractionDims:
    """`result[batch, row, column] = sum over k of left[batch, row, k] * right[batch, k, column]`.

    Attributes:
        left: the factor whose elements are read one by one, each for all columns.
        right: the factor whose columns lie side by side; it has one dim of its own.
        result: type of the result.
        rows: the result's dims that only `left` varies along, outermost first.
        column: the result's dim that only `right` varies along.
        accumulator: the dtype that sums are kept in.
        groups: the columns, and the left side's summed dim, are split into so many independent
            parts; a sum goes over one of them.
        windows: axes along which `right` slides, in the order of the result's dims.
        bias: number of the operand that holds one addend a column, which may be absent; None where
            the op has no such operand.
        pad_value: what a tap in the padding reads: a zero point, where elements are stored with
            one.
        max_weight: how far from 0 elements of the right side are at most; None where that isn't
            known.
    """

    left: Factor
    right: Factor
    result: TensorType
    rows: tuple[int, ...]
    column: int
    accumulator: DType
    groups: Dim = 1
    windows: tuple[Window, ...] = ()
    bias: int | None = None
    pad_value: int = 0
    max_weight: int | None = None

    @property
    def has_narrow_products(self) -> bool:
        """Whether two products of bytes always fit 16 bits in sum, whatever the left side holds."""
        return self.max_weight is not None and has_narrow_products(self.left.dtype, self.max_weight)

    @property
    def m(self) -> Dim:
        """The number of rows, over all windows and images."""
        return product([self.result.dims[d] for d in self.rows])

    @property
    def n(self) -> Dim:
        """The number of columns per group."""
        return floor_divide(self.result.dims[self.column], self.groups)

    @property
    def k(self) -> Dim:
        """The number of terms per sum."""
        return product([self.channels, *(w.kernel for w in self.windows)])

    @property
    def batch(self) -> Dim:
        """The number of independent products, groups aside."""
        others = (d for d in range(self.result.rank) if d != self.column and d not in self.rows)
        return product([self.result.dims[d] for d in others])

    @property
    def channels(self) -> Dim:
        """The number of terms of a sum at one tap of the windows.

        The side whose extent is a number is asked, as the other one may only be assumed equal.
        """
        right = self.right.type.dims[self.right.summed]
        left = self.left.type.dims[self.left.summed]
        return left if isinstance(left, int) and self.groups == 1 else right

    @property
    def is_in_words(self) -> bool:
        """Whether the right side's reduced dim is split into groups that fill a machine word."""
        layout = self.right.type.layout
        if layout is None or self.right.dtype.bytes > 2:
            return False
        return (self.right.summed, word_terms(self.right.dtype)) in layout.splits

    @property
    def is_padded(self) -> bool:
        return any(window.is_padded for window in self.windows)

    @property
    def is_pointwise(self) -> bool:
        """Whether every element of the result reads the left side at one place of each window."""
        return all(window.kernel == 1 for window in self.windows)

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one column or one channel, so that lanes run along groups."""
        return self.groups != 1 and (self.n == 1 or self.channels == 1)

    @property
    def row_axis(self) -> int:
        """The result dim along which a tile's rows run: the innermost one of several row dims."""
        slid = tuple(window.axis for window in self.windows) or self.rows
        wide = [d for d in slid if self.result.dims[d] != 1]
        return wide[-1] if wide else slid[-1]

    @property
    def tile_extents(self) -> tuple[Dim, Dim]:
        """(rows, columns) that register tiles run along: one image row at a time for windows with
        several taps or strides; all contiguous rows otherwise.
        """
        if not self.windows:
            return self.m, self.n
        if not self.is_pointwise or any(window.stride != 1 for window in self.windows):
            return self.result.dims[self.row_axis], self.n
        return product([self.result.dims[w.axis] for w in self.windows]), self.n
