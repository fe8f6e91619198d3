"""Grouped convolutions of 8-bit data with few channels per group: image rows in scratch, multiplied
in packed words.

A group of a few channels has as few columns of weights, which fill no vector. So a lane sums some
of the words of one column, and others the rest, or a vector has the columns of several groups. Owns
these vectors, what is brought into scratch for them, and their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Binary, Expr, Load, Var
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import DType
from aot.kernels.ir.nodes import Space, Stmt, Store
from aot.kernels.match.products import at_splits
from aot.kernels.match.windows import group_sizes
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.inline import reduces_of
from aot.kernels.nest.nest import Axis, Nest, Output, Values, split_axis
from aot.kernels.nest.rows import row_of_vectors
from aot.kernels.rules.windows.byte_windows import (
    TOGETHER,
    VECTOR_BYTES,
    Block,
    ByteTiles,
    ByteWindow,
    Product,
)
from aot.kernels.stage.tails import where
from aot.kernels.stage.vectors import serial_loops

# rows of the result that share what is brought into scratch
ROWS = 4


@dataclass(frozen=True)
class Groups:
    """The sizes of a grouped convolution and of its vectors.

    Attributes:
        count: of groups.
        inner, outer: channels of the image, and of the result, of each.
        columns: of the result's channels that a vector has.
        parts: lanes that a column has.
    """

    count: int
    inner: int
    outer: int
    columns: int
    parts: int

    @property
    def words(self) -> int:
        """The number of packed words of a column at one tap."""
        return self.inner // DOT_GROUP

    @property
    def together(self) -> int:
        """The number of groups that are computed together, so that vectors are full."""
        least = math.lcm(self.outer, self.columns) // self.outer
        several = max(least, TOGETHER // self.outer // least * least)
        while several > least and self.count % several:
            several -= least
        return several

    @staticmethod
    def of(count: int, inner: int, outer: int, lanes: int) -> Groups | None:
        """The sizes of a grouped convolution; None where a group's channels do not fill words, or
        its vectors would not be full."""
        if inner % DOT_GROUP or outer > TOGETHER or count < 2:
            return None
        columns = min(lanes, outer & -outer)
        parts = lanes // columns
        if outer < lanes // 2 or (inner // DOT_GROUP) % parts:
            columns, parts = lanes, 1
        made = Groups(count, inner, outer, columns, parts)
        fits = made.together * outer <= TOGETHER and count % made.together == 0
        return made if fits else None


def schedule_byte_groups(work: Work) -> Build | None:
    """The loops of an 8-bit grouped convolution; None for other outputs."""
    nest, output = work.nest, work.output
    if work.is_long or work.blocks is not None:
        return None
    reduces = reduces_of(output.value)
    if nest.is_gpu or len(reduces) != 1 or not output.axes:
        return None
    channels = output.axes[-1]
    body = reduces[0].body
    # the left side depends on a channel only through its group
    sizes = group_sizes([body.a], channels) if isinstance(body, Binary) else iter(())
    size = next(filter(None, sizes), None)
    if size is None or expr.coefficient(output.address, channels.var) != 1:
        return None
    parted = split_axis(output, len(output.axes) - 1, size)
    *outer, group, member = parted.axes
    (reduce,) = reduces_of(parted.value)
    window = ByteWindow.of(nest, outer, reduce, member)
    if window is None or len(window.rest) != 1:
        return None
    (inner,) = window.rest
    steps = [expr.coefficient(window.image.indices[0], v) for v in (group.var, inner.var)]
    if not isinstance(inner.extent, int) or steps != [inner.extent, 1]:
        return None
    groups = Groups.of(group.count, inner.extent, size, nest.lanes)
    if groups is None:
        return None
    words = _Words.of(window.weight, groups, (group, member, inner))
    if words is None:
        return None
    whole = replace(window, reduce=reduces[0], channels=channels)
    return _Groups(nest, output, whole, groups, words).build


@dataclass(frozen=True)
class _Words:
    """The layout of the weights' packed words in memory.

    Attributes:
        load: of the first word of the first column.
        step: how far apart the words of a column are.
        zeros: what `load` and the image say of groups, their members, and what these sum.
    """

    load: Load
    step: int
    zeros: Values

    @staticmethod
    def of(weight: Load, groups: Groups, axes: tuple[Axis, Axis, Axis]) -> _Words | None:
        """The layout of a weight's words; None where words are not stored column by column."""
        group, member, inner = axes
        word, zero = Var("w"), expr.index(0)
        split = at_splits(weight, {(inner.var, DOT_GROUP): (word, zero)}, {})
        assert isinstance(split, Load)
        steps = [expr.coefficient(split.indices[0], a.var) for a in (group, member)]
        step = expr.coefficient(split.indices[0], word)
        if steps != [DOT_GROUP * groups.outer, DOT_GROUP] or not isinstance(step, int):
            return None
        if groups.words > 1 and not step:
            return None
        zeros: Values = {a.var: zero for a in axes} | {word: zero}
        return _Words(split, step, zeros)


class _Groups(ByteTiles):
    """Tiles of an 8-bit grouped convolution, whose image rows are staged in scratch.

    Attributes:
        rows_held: [row of the image][place][channel of the block's groups].
    """

    tile_results = 12

    def __init__(
        self, nest: Nest, output: Output, window: ByteWindow, groups: Groups, words: _Words
    ) -> None:
        self.groups = groups
        self.stored = words
        self.width = groups.together * groups.outer
        self.held = groups.together * groups.inner
        down = window.down
        height = down.places(min(ROWS, down.at.count))
        super().__init__(nest, output, window, ROWS, height * self.held)
        shape = height, window.along.places(self.piece), self.held
        self.rows_held = nest.builder.scratch("image_rows", DType.U8, shape, Space.WORKGROUP)

    @property
    def sums_of_result(self) -> int:
        return self.width * self.groups.parts

    @property
    def blocks(self) -> list[tuple[int, Callable[[Expr], Block]]]:
        groups = self.groups

        def block(n: Expr) -> Block:
            first, image = (expr.mul(n, expr.index(k)) for k in (self.width, self.held))
            return Block(first, self.width, image)

        return [(groups.count // groups.together, block)]

    def image_at(self, values: Values, channel: Expr, down: Expr, along: Expr) -> Expr:
        return super().image_at({**values, **self.stored.zeros}, channel, down, along)

    def bands(self, values: Values, block: Block, first: Expr, several: int) -> list[Stmt]:
        return self.filled_bands(values, block, first, several, self._fill)

    def _fill(self, values: Values, block: Block, down: Expr, along: Expr) -> list[Stmt]:
        nest, window = self.nest, self.window

        def bytes_(r: Expr, p: Expr, *, is_padding: bool) -> list[Stmt]:
            y, x = expr.add(down, r), expr.add(along, p)

            def channel(k: Expr, width: int, lane: Expr | None) -> list[Stmt]:
                value: Expr = expr.const(window.padding, DType.U8)
                if not is_padding:
                    address = self.image_at(values, expr.add(block.image, k), y, x)
                    value = self.loaded(address, None)
                return [Store(self.rows_held, (r, p, k), value)]

            return row_of_vectors(nest, expr.index(0), self.held, VECTOR_BYTES, channel)

        def place(r: Expr, p: Expr) -> list[Stmt]:
            stmts = bytes_(r, p, is_padding=False)
            is_there = self.is_column(expr.add(along, p))
            return where(is_there, stmts, lambda: bytes_(r, p, is_padding=True))

        def row(r: Expr) -> list[Stmt]:
            count = window.along.places(self.piece)
            stmts = nest.serial(count, lambda p: place(r, p), "p")
            y = expr.add(down, r)
            is_there = window.down.is_there(y, y, self.reach_of_rows)
            return where(
                *(is_there, stmts),
                lambda: nest.serial(count, lambda p: bytes_(r, p, is_padding=True), "p"),
            )

        return nest.serial(window.down.places(self.rows), row, "r")

    def add(self, block: Block, row: Expr, first: Expr) -> list[Stmt]:
        groups = self.groups
        several = math.lcm(groups.outer, groups.columns)

        def unit(n: Expr) -> list[Stmt]:
            """Statements for the vectors of the smallest number of groups that fill whole
            vectors."""
            stmts: list[Stmt] = []
            for vector in range(several // groups.columns):
                stmts += self._vector(block, row, first, (n, several), vector)
            return stmts

        return self.nest.serial(self.width // several, unit, "n")

    def _vector(
        self, block: Block, row: Expr, first: Expr, unit: tuple[Expr, int], vector: int
    ) -> list[Stmt]:
        """Statements that sum vector `vector` of a unit's columns."""
        nest, window, groups = self.nest, self.window, self.groups
        down, along = window.down, window.along
        n, several = unit
        parts = expr.index(groups.parts)
        begin = vector * groups.columns
        # groups, columns and words from the unit's first one on
        group_of_unit = expr.mul(n, expr.index(several // groups.outer * groups.inner))
        column_of_unit = expr.mul(n, expr.index(several))

        def column(lane: Expr) -> Expr:
            return expr.linear(expr.binary("floordiv", lane, parts), begin)

        def group(lane: Expr) -> Expr:
            if groups.outer % groups.columns == 0:
                return expr.index(begin // groups.outer)
            return expr.binary("floordiv", column(lane), expr.index(groups.outer))

        def word(i: Expr, lane: Expr) -> Expr:
            return expr.add(expr.mul(i, parts), expr.binary("floormod", lane, parts))

        def step(added: Callable[[Product], list[Stmt]], ky: Expr, kx: Expr, i: Expr) -> list[Stmt]:
            y = expr.linear((row, down.step), (ky, down.apart))

            def words(r: Expr, lane: Expr) -> tuple[Load, Load]:
                x = expr.linear((expr.add(first, r), along.step), (kx, along.apart))
                at = expr.linear(
                    group_of_unit, (group(lane), groups.inner), (word(i, lane), DOT_GROUP)
                )
                return Load(self.rows_held, (y, x, at), DType.U8X4), weight(lane)

            def weight(lane: Expr) -> Load:
                assert down.tap is not None
                assert along.tap is not None
                taps = {v: expr.index(0) for v, _ in window.reduce.axes}
                taps |= {down.tap.var: ky, along.tap.var: kx}
                load = self.stored.load
                at = expr.linear(
                    expr.substitute(load.indices[0], {**self.stored.zeros, **taps}),
                    *((n, DOT_GROUP) for n in (block.first, column_of_unit, column(lane))),
                    (word(i, lane), self.stored.step),
                )
                return Load(load.source, (at,), DType.I8X4)

            return added(words)

        place = expr.linear(expr.mul(column_of_unit, parts), begin * groups.parts)
        loops = [("ky", down.taps), ("kx", along.taps), ("w", groups.words // groups.parts)]
        return self.in_registers(
            lambda lane: expr.const(0, DType.I32),
            lambda added: serial_loops(nest, loops, partial(step, added)),
            place,
        )

    def total(self, block: Block, r: Expr, channel: Expr) -> Expr:
        parts = self.groups.parts
        found = self.bias_of(expr.add(block.first, channel))
        for part in range(parts):
            at = expr.linear((channel, parts), part)
            found = expr.add(Load(self.sums, (r, at), DType.I32), found)
        return found
