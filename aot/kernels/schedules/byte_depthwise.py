"""Depthwise windows of bytes: what lies below each other in a channel becomes words in scratch.

A word holds a place's bytes of four rows, and serves all windows that it is in: those side by side,
by other weights, and those above each other where they fit into the words of one. Owns these words
and their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aot.ir import expr
from aot.ir.expr import Dot, Expr, Load, Reduce
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Space, Stmt, Store
from aot.kernels.lower.nest import Nest, Output
from aot.kernels.schedules.byte_windows import (
    Block,
    ByteTiles,
    ByteWindow,
    Values,
    number,
)

# words of a window that are written out
MOST_WORDS = 16


def schedule_byte_depthwise(
    nest: Nest, output: Output, reduces: Sequence[Reduce]
) -> tuple[Stmt, ...] | None:
    """The loops of a depthwise convolution of bytes; None where the output is none, or has too few
    channels for a vector."""
    if len(reduces) != 1 or not output.axes:
        return None
    channels = output.axes[-1]
    window = ByteWindow.of(nest, output.axes[:-1], reduces[0], channels)
    if window is None or window.rest or not isinstance(channels.extent, int):
        return None
    steps = [expr.coefficient(x.indices[0], channels.var) for x in (window.image, window.weight)]
    if steps != [1, 1] or expr.coefficient(output.address, channels.var) != 1:
        return None
    words = -(-window.down.taps // DOT_GROUP) * window.along.taps
    if channels.extent < nest.lanes or words > MOST_WORDS:
        return None
    return _Depthwise(nest, output, window).build()


class _Depthwise(ByteTiles):
    """
    Attributes:
        words: [place][group of rows][channel]: four rows' bytes each.
        weights: [row of the result][tap along][group of rows][channel], the same of the weights.
    """

    tile_results = 8

    def __init__(self, nest: Nest, output: Output, window: ByteWindow) -> None:
        down, along = window.down, window.along
        self.groups = -(-down.taps // DOT_GROUP)
        # as many rows as have all of their taps in as many words
        rows = 1
        if down.apart == 1:
            rows += (DOT_GROUP * self.groups - down.taps) // down.step
        self.width = next(w for w in (64, 32, 16) if w <= number(window.channels))
        row = self.groups * self.width * DOT_GROUP
        super().__init__(nest, output, window, rows, row)
        scratch = nest.builder.scratch
        places = along.places(self.piece)
        self.words = scratch("column_words", DType.U8, (places, row), Space.WORKGROUP)
        weights = self.rows, along.taps, row
        self.weights = scratch("column_weights", DType.I8, weights, Space.WORKGROUP)

    @property
    def sums_of_result(self) -> int:
        return self.width

    @property
    def blocks(self) -> list[tuple[int, Callable[[Expr], Block]]]:
        """Whole blocks, and one for what is left, which begins early enough to be there."""
        extent, width = number(self.window.channels), self.width
        count = extent // width
        found: list[tuple[int, Callable[[Expr], Block]]] = [(count, partial(_block, width))]
        done = count * width
        if done < extent:
            least = self.nest.lanes
            last = next(w for w in (least, 2 * least, 4 * least) if w >= extent - done)
            first = expr.index(extent - last)
            stored = done if extent - last < done else None
            found.append((1, lambda n: Block(first, last, first, stored)))
        return found

    def prepare(self, block: Block) -> list[Stmt]:
        nest, window = self.nest, self.window
        down, along = window.down, window.along
        assert down.tap is not None
        assert along.tap is not None
        down_tap, along_tap = down.tap.var, along.tap.var
        zero = expr.index(0)

        def words(v: Expr, kx: Expr, g: Expr) -> list[Stmt]:
            def weight(t: Expr, lane: Expr) -> Expr:
                tap = expr.add(t, expr.mul(g, expr.index(DOT_GROUP)))
                tap = expr.sub(tap, expr.mul(v, expr.index(down.step)))
                place = {var: zero for var, _ in window.reduce.axes}
                place |= {down_tap: tap, along_tap: kx}
                place |= {window.channels.var: expr.add(block.first, lane)}
                address = expr.substitute(window.weight.indices[0], place)
                is_there = expr.all_of(
                    [
                        expr.binary("ge", tap, zero),
                        expr.binary("lt", tap, expr.index(down.taps)),
                    ]
                )
                return Load(
                    window.weight.source, (address,), DType.I8, is_there, expr.const(0, DType.I8)
                )

            def place(t: Expr, lane: Expr) -> Expr:
                at = expr.add(expr.mul(lane, expr.index(DOT_GROUP)), t)
                return expr.add(at, expr.mul(g, expr.index(block.width * DOT_GROUP)))

            return nest.unrolled(
                DOT_GROUP,
                lambda t: [
                    nest.spread(
                        block.width,
                        lambda lane: [
                            Store(self.weights, (v, kx, place(t, lane)), weight(t, lane))
                        ],
                    )
                ],
                "t",
            )

        def row(v: Expr) -> list[Stmt]:
            def tap(kx: Expr) -> list[Stmt]:
                return nest.serial(self.groups, lambda g: words(v, kx, g), "g")

            return nest.serial(along.taps, tap, "k")

        return nest.serial(self.rows, row, "v")

    def fill(self, values: Values, block: Block, down: Expr, along: Expr) -> list[Stmt]:
        nest, window = self.nest, self.window

        def column(p: Expr, *, is_asked: bool) -> list[Stmt]:
            at = expr.add(along, p)

            def group(g: Expr) -> list[Stmt]:
                return self._words(values, block, down, (at, p), g, is_asked=is_asked)

            stmts = nest.serial(self.groups, group, "g")
            is_there = self.is_column(at)
            if is_there is None:
                return stmts
            return [If(is_there, tuple(stmts), tuple(self._padding(block, p)))]

        def columns(*, is_asked: bool) -> list[Stmt]:
            return nest.serial(
                window.along.places(self.piece), lambda p: column(p, is_asked=is_asked), "p"
            )

        are_inside = self.rows_inside(down)
        if are_inside is None:
            return columns(is_asked=False)
        return [If(are_inside, tuple(columns(is_asked=False)), tuple(columns(is_asked=True)))]

    def _words(
        self,
        values: Values,
        block: Block,
        down: Expr,
        place: tuple[Expr, Expr],
        g: Expr,
        *,
        is_asked: bool,
    ) -> list[Stmt]:
        """Group `g` of the words of a place along a row, and in scratch."""
        nest, slide = self.nest, self.window.down
        along, p = place
        last = slide.places(self.rows) - 1

        def row(t: Expr) -> list[Stmt]:
            # rows behind the last one have no weights
            r = expr.add(t, expr.mul(g, expr.index(DOT_GROUP)))
            r = expr.mul(r, expr.index(slide.apart))
            if (DOT_GROUP * self.groups - 1) * slide.apart > last:
                r = expr.binary("min", r, expr.index(last))
            at = expr.add(down, r)
            guard = self.is_row(at) if is_asked else None

            def channel(lane: Expr) -> list[Stmt]:
                address = self.image_at(values, expr.add(block.image, lane), at, along)
                byte = expr.add(expr.mul(lane, expr.index(DOT_GROUP)), t)
                byte = expr.add(byte, expr.mul(g, expr.index(block.width * DOT_GROUP)))
                return [Store(self.words, (p, byte), self.loaded(address, guard))]

            return [nest.spread(block.width, channel)]

        return nest.unrolled(DOT_GROUP, row, "t")

    def _padding(self, block: Block, p: Expr) -> list[Stmt]:
        padding = expr.const(self.window.padding, DType.U8)
        size = block.width * DOT_GROUP * self.groups
        lanes = self.nest.target.vector_bytes

        def vector(n: Expr) -> list[Stmt]:
            first = expr.mul(n, expr.index(lanes))
            return [
                self.nest.spread(
                    lanes, lambda lane: [Store(self.words, (p, expr.add(first, lane)), padding)]
                )
            ]

        return self.nest.serial(size // lanes, vector, "o")

    def add(self, block: Block, row: Expr, first: Expr) -> list[Stmt]:
        nest, along, lanes = self.nest, self.window.along, self.lanes
        acc = nest.builder.scratch("acc", DType.I32, (self.tile, lanes))

        def chunk(u: Expr) -> list[Stmt]:
            start = expr.mul(u, expr.index(lanes))

            def byte(g: int, lane: Expr) -> Expr:
                at = expr.mul(expr.add(start, lane), expr.index(DOT_GROUP))
                return expr.add(at, expr.index(g * block.width * DOT_GROUP))

            def summed(kx: int, g: int, r: Expr, lane: Expr) -> list[Stmt]:
                place = expr.mul(expr.add(first, r), expr.index(along.step))
                place = expr.add(place, expr.index(kx * along.apart))
                left = Load(self.words, (place, byte(g, lane)), DType.U8X4)
                right = Load(self.weights, (row, expr.index(kx), byte(g, lane)), DType.I8X4)
                old = Load(acc, (r, lane), DType.I32)
                return [Store(acc, (r, lane), Dot(left, right, old))]

            def each(body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
                return nest.unrolled(
                    self.tile, lambda r: [nest.spread(lanes, lambda lane: body(r, lane))], "r"
                )

            def begin(r: Expr, lane: Expr) -> list[Stmt]:
                channel = expr.add(block.first, expr.add(start, lane))
                return [Store(acc, (r, lane), self.bias_of(channel))]

            stmts = each(begin)
            for kx in range(along.taps):
                for g in range(self.groups):
                    stmts += each(partial(summed, kx, g))
            return stmts + each(
                lambda r, lane: [
                    Store(self.sums, (r, expr.add(start, lane)), Load(acc, (r, lane), DType.I32))
                ]
            )

        return nest.serial(block.width // lanes, chunk, "u")

    def total(self, block: Block, r: Expr, channel: Expr) -> Expr:
        return Load(self.sums, (r, channel), DType.I32)


def _block(width: int, n: Expr) -> Block:
    first = expr.mul(n, expr.index(width))
    return Block(first, width, first)
