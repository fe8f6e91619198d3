"""Register tiles along rows and columns: the elements that a tile covers, and remainders where none
fits.

Shared by contractions and windows. Owns which of a few tiles takes which rows; computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Expr, Reduce, Unary, Var
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt
from aot.kernels.nest.nest import Axis, Nest, Output

LONG = 24  # parts of an epilogue that is written once and not for each of a tile's vectors


@dataclass(frozen=True)
class Shape:
    """The rows and columns that a register tile covers.

    Attributes:
        rows: how many.
        chunks, width: its columns, as vectors of `width`.
        has_all_rows, has_all_columns: whether all that it covers is there, wherever it starts.
    """

    rows: int
    chunks: int
    width: int
    has_all_rows: bool
    has_all_columns: bool

    @property
    def columns(self) -> int:
        return self.chunks * self.width

    def row_values(
        self, rows: Axis | None, first: Expr, r: Expr, *, is_clamped: bool
    ) -> dict[Var, Expr]:
        """The index along axis `rows` of row `r` in a tile that starts at `first`, clamped to the
        last row if `is_clamped`. Empty without a row axis.
        """
        if rows is None:
            return {}
        at = expr.add(first, r)
        if is_clamped and not self.has_all_rows:
            at = expr.binary("min", at, expr.index(dims.add(rows.extent, -1)))
        return {rows.var: at}

    def span_of(self, r: int, extent: Dim) -> tuple[Dim, Dim | None]:
        """(least, greatest) index that row `r` of a tile can have; the greatest is None unless
        tiles have all their rows."""
        last = dims.add(extent, r - self.rows) if self.has_all_rows else None
        return r, last


Build = Callable[[Shape, Expr], list[Stmt]]
"""The statements of a tile of a shape, from its first row on."""


def over_rows(
    nest: Nest,
    extent: Dim,
    first: Expr,
    shape: Shape,
    height: int,
    build: Build,
    *,
    is_split: bool = False,
) -> list[Stmt]:
    """Runs a tile of `shape.rows` rows from `first`, with smaller tiles for a remainder.

    Where only the device knows how many there are, or it `is_split`, such tiles have all theirs,
    and what is left is done by those of `height`; 0 stands for none.
    """
    rows = shape.rows
    if dims.modulo(extent, rows) == 0:
        return build(replace(shape, has_all_rows=True), first)
    is_known = isinstance(extent, int) and not is_split
    if is_known or nest.is_gpu or not height:
        return build(replace(shape, has_all_rows=False), first)
    whole = build(replace(shape, has_all_rows=True), first)
    # a lower tile may start anywhere that a higher one does
    divides = dims.modulo(extent, height) == 0 and rows % height == 0
    lower = replace(shape, rows=height, has_all_rows=divides)
    count = dims.ceil_divide(dims.modulo(extent, rows), height)
    rest = nest.serial(
        count, lambda n: build(lower, expr.add(first, expr.mul(n, expr.index(height)))), "mr"
    )
    end = expr.add(first, expr.index(rows))
    return [If(expr.binary("le", end, expr.index(extent)), tuple(whole), tuple(rest))]


class ReusedScratch:
    """Scratch that all tiles of a kernel share, sized by the first tile's needs."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.made: dict[str, Scratch] = {}

    def get(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Scratch:
        """A shared scratch of at least `shape` in every dim."""
        known = self.made.get(name)
        if known is None or any(a < b for a, b in zip(known.shape, shape, strict=True)):
            known = self.nest.builder.scratch(name, dtype, shape, Space.WORKGROUP)
            self.made[name] = known
        return known


def is_long(values: Iterable[Expr], reduce: Reduce) -> bool:
    """Whether the epilogue around a reduction is so long that a copy of it per row would be most of
    a kernel's code."""
    around = {node for value in values for node in expr.nodes(value)} - set(expr.nodes(reduce))
    return len(around) > LONG or any(
        isinstance(e, (Unary, Binary)) and e.op in expr.TRANSCENDENTAL_OPS for e in around
    )


def packs_bytes(nest: Nest, output: Output, columns: Var) -> bool:
    """Whether results are bytes that are contiguous along `columns`, and the target is a CPU that
    packs several registers of them into one.
    """
    buffers = (output.buffer, *(buffer for buffer, _ in output.others))
    is_there = nest.target.packs_bytes and not nest.is_gpu
    return (
        is_there
        and expr.coefficient(output.address, columns) == 1
        and all(b.dtype in (DType.U8, DType.I8) for b in buffers)
    )
