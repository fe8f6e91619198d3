"""Depthwise convolutions of 8-bit data: vertically adjacent bytes of a channel are packed into
words in scratch.

A word holds a place's bytes of four rows, and serves all windows that it is in: those side by side,
by other weights, and those above each other where they fit into the words of one. Windows that
begin at every other place have words of two by two places, which serve all of them by the same
weights. Owns these words and their sums.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

from aot.ir import expr
from aot.ir.expr import Expr, Load
from aot.ir.schedule import DOT_GROUP
from aot.ir.types import DType
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Nest, Output, Values
from aot.kernels.rules.windows.byte_windows import (
    Block,
    ByteTiles,
    ByteWindow,
)
from aot.kernels.stage.band import blank_vectors
from aot.kernels.stage.tails import below, between, shifted, where, within
from aot.kernels.stage.vectors import serial_loops, unrolled_vectors

# words of a window that are written out
MOST_WORDS = 16
# the side of a square of places in a word
SIDE = 2
# taps along a side of windows that are better off with words of columns
LEAST_TAPS = 3
# windows below each other whose rows a workgroup has at least: those of one are made twice
LINES = 4


class Term(NamedTuple):
    """One product of packed words in a result's sum.

    Attributes:
        word, weight: where they are, but for the byte.
        begin: the first channel's byte.
    """

    word: tuple[Expr, ...]
    weight: tuple[Expr, ...]
    begin: int


def schedule_byte_depthwise(work: Work) -> Build | None:
    """The loops of an 8-bit depthwise convolution; None for other outputs, or with too few channels
    for a vector."""
    nest, output, reduces = work.nest, work.reduced.output, work.reduced.reduces
    if work.reduced.free or len(reduces) != 1 or not output.axes:
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
    slides = window.down, window.along
    # windows that begin at every other place share words of two by two of them
    if all(s.step == SIDE and s.apart == 1 and s.taps > LEAST_TAPS for s in slides):
        return _Squares(nest, output, window).build
    return _Depthwise(nest, output, window).build


class _Words(ByteTiles):
    """Tiles of a depthwise convolution over packed words, one word per channel.

    Attributes:
        words, weights: scratch, the last index of which goes through a channel's bytes.
        width: channels of the widest block.
    """

    tile_results = 8
    words: Scratch
    weights: Scratch

    def __init__(
        self, nest: Nest, output: Output, window: ByteWindow, rows: int, channel_bytes: int
    ) -> None:
        """A place in scratch has `channel_bytes` for each channel."""
        self.width = _width(window)
        super().__init__(nest, output, window, rows, channel_bytes * self.width)

    @property
    def sums_of_result(self) -> int:
        return self.width

    @property
    def blocks(self) -> list[tuple[int, Callable[[Expr], Block]]]:
        """(count, block) of the whole blocks of channels, and of a tail block. A short tail
        overlaps the block before it.
        """
        extent, width = self.window.channels.count, self.width
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

    @abstractmethod
    def terms(self, block: Block, row: Expr, result: Expr) -> list[Term]:
        """The terms of a result's sum, in row `row` of the rows that share scratch."""

    def add(self, block: Block, row: Expr, first: Expr) -> list[Stmt]:
        terms = range(len(self.terms(block, row, first)))

        def chunk(u: Expr) -> list[Stmt]:
            start = expr.mul(u, expr.index(self.lanes))

            def product(term: int, r: Expr, lane: Expr) -> tuple[Load, Load]:
                word, weight, begin = self.terms(block, row, expr.add(first, r))[term]
                byte = expr.linear((expr.add(start, lane), DOT_GROUP), begin)
                left = Load(self.words, (*word, byte), DType.U8X4)
                return left, Load(self.weights, (*weight, byte), DType.I8X4)

            def bias(lane: Expr) -> Expr:
                return self.bias_of(expr.add(block.first, expr.add(start, lane)))

            return self.in_registers(
                *(bias, lambda added: [s for n in terms for s in added(partial(product, n))]), start
            )

        return self.nest.serial(block.width // self.lanes, chunk, "u")

    def weight_at(
        self, block: Block, at: tuple[Expr, Expr], lane: Expr, guard: Expr | None
    ) -> Expr:
        """A channel's weight at a tap; 0 where `guard` fails, as at padding taps."""
        window = self.window
        place: Values = {var: expr.index(0) for var, _ in window.reduce.axes}
        for slide, tap in zip((window.down, window.along), at, strict=True):
            assert slide.tap is not None
            place[slide.tap.var] = tap
        place[window.channels.var] = expr.add(block.first, lane)
        address = expr.substitute(window.weight.indices[0], place)
        other = expr.const(0, DType.I8)
        return Load(window.weight.source, (address,), DType.I8, guard, other)

    def total(self, block: Block, r: Expr, channel: Expr) -> Expr:
        return Load(self.sums, (r, channel), DType.I32)


class _Depthwise(_Words):
    """Depthwise windows by words that pack four rows.

    Attributes:
        words: [place][group of rows][channel]: four rows' bytes each.
        weights: [row of the result][tap along][group of rows][channel], the same of the weights.
    """

    def __init__(self, nest: Nest, output: Output, window: ByteWindow) -> None:
        down, along = window.down, window.along
        self.groups = -(-down.taps // DOT_GROUP)
        # as many rows as have all of their taps in as many words
        rows = 1
        if down.apart == 1:
            rows += (DOT_GROUP * self.groups - down.taps) // down.step
        super().__init__(nest, output, window, rows, self.groups * DOT_GROUP)
        place_bytes = self.groups * self.width * DOT_GROUP
        scratch = nest.builder.scratch
        places = along.places(self.piece)
        self.words = scratch("column_words", DType.U8, (places, place_bytes), Space.WORKGROUP)
        weights = self.rows, along.taps, place_bytes
        self.weights = scratch("column_weights", DType.I8, weights, Space.WORKGROUP)

    def prepare(self, block: Block) -> list[Stmt]:
        nest, down, along = self.nest, self.window.down, self.window.along

        def words(v: Expr, kx: Expr, g: Expr) -> list[Stmt]:
            def stored(t: Expr, lane: Expr) -> list[Stmt]:
                tap = expr.sub(expr.linear(t, (g, DOT_GROUP)), expr.mul(v, expr.index(down.step)))
                byte = expr.linear(_byte(lane, t), (g, block.width * DOT_GROUP))
                is_there = between(tap, 0, down.taps)
                weight = self.weight_at(block, (tap, kx), lane, is_there)
                return [Store(self.weights, (v, kx, byte), weight)]

            return unrolled_vectors(nest, (DOT_GROUP,), block.width, stored, "t")

        loops = [("v", self.rows), ("k", along.taps), ("g", self.groups)]
        return serial_loops(nest, loops, words)

    def bands(self, values: Values, block: Block, first: Expr, several: int) -> list[Stmt]:
        return self.filled_bands(values, block, first, several, self._fill)

    def _fill(self, values: Values, block: Block, down: Expr, along: Expr) -> list[Stmt]:
        nest, window = self.nest, self.window

        def columns(*, is_asked: bool) -> list[Stmt]:
            def column(p: Expr) -> list[Stmt]:
                at = expr.add(along, p)

                def group(g: Expr) -> list[Stmt]:
                    return self._words(values, block, down, (at, p), g, is_asked=is_asked)

                stmts = nest.serial(self.groups, group, "g")
                is_there = self.is_column(at)
                return where(is_there, stmts, lambda: self._padding(block, p))

            return nest.serial(window.along.places(self.piece), column, "p")

        last = expr.linear(down, self.reach - 1)
        are_inside = window.down.is_there(down, last, self.reach_of_rows)
        return where(are_inside, columns(is_asked=False), lambda: columns(is_asked=True))

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
        """Statements that pack group `g` of words of a place, and store them in scratch."""
        nest, slide = self.nest, self.window.down
        along, p = place
        last = self.reach - 1

        def row(t: Expr) -> list[Stmt]:
            # rows behind the last one have no weights
            r = expr.mul(expr.linear(t, (g, DOT_GROUP)), expr.index(slide.apart))
            if (DOT_GROUP * self.groups - 1) * slide.apart > last:
                r = expr.binary("min", r, expr.index(last))
            at = expr.add(down, r)
            guard = slide.is_there(at, at, self.reach_of_rows) if is_asked else None

            def channel(lane: Expr) -> list[Stmt]:
                address = self.image_at(values, expr.add(block.image, lane), at, along)
                byte = expr.linear(_byte(lane, t), (g, block.width * DOT_GROUP))
                return [Store(self.words, (p, byte), self.loaded(address, guard))]

            return [nest.spread(block.width, channel)]

        return nest.unrolled(DOT_GROUP, row, "t")

    def _padding(self, block: Block, p: Expr) -> list[Stmt]:
        padding = expr.const(self.window.padding, DType.U8)
        lanes = self.nest.target.vector_bytes
        vectors = block.width * DOT_GROUP * self.groups // lanes

        def store(at: Expr) -> Stmt:
            return Store(self.words, (p, at), padding)

        return blank_vectors(self.nest, (vectors, lanes), expr.index(0), store, "o")

    def terms(self, block: Block, row: Expr, result: Expr) -> list[Term]:
        along = self.window.along
        place = expr.mul(result, expr.index(along.step))
        return [
            Term(
                (expr.linear(place, kx * along.apart),),
                (row, expr.index(kx)),
                g * block.width * DOT_GROUP,
            )
            for kx, g in product(range(along.taps), range(self.groups))
        ]


class _Squares(_Words):
    """Depthwise windows by words that pack two by two places. Each line of words is packed once for
    all result rows that read it, in a ring of as many lines as a window has.

    Attributes:
        words: [line of the ring][place][channel].
        weights: [line of a window][place of a window][channel].
        down, along: words of a window.
    """

    def __init__(self, nest: Nest, output: Output, window: ByteWindow) -> None:
        self.down, self.along = (-(-s.taps // SIDE) for s in (window.down, window.along))
        super().__init__(nest, output, window, 1, self.down * DOT_GROUP // SIDE)
        place_bytes = self.width * DOT_GROUP
        self.places = self.piece + self.along - 1
        scratch = nest.builder.scratch
        words = self.down, self.places, place_bytes
        self.words = scratch("square_words", DType.U8, words, Space.WORKGROUP)
        weights = self.down, self.along, place_bytes
        self.weights = scratch("square_weights", DType.I8, weights, Space.WORKGROUP)

    @property
    def least_bands(self) -> int:
        return LINES * self.down

    @property
    def reach(self) -> int:
        return SIDE * self.down

    def prepare(self, block: Block) -> list[Stmt]:
        nest, window = self.nest, self.window
        taps = window.down.taps, window.along.taps

        def word(gy: Expr, gx: Expr) -> list[Stmt]:
            def byte(t: Expr, lane: Expr) -> list[Stmt]:
                at = _square(gy, gx, t)
                is_there = expr.all_of(below(i, n) for i, n in zip(at, taps, strict=True))
                weight = self.weight_at(block, at, lane, is_there)
                return [Store(self.weights, (gy, gx, _byte(lane, t)), weight)]

            return unrolled_vectors(nest, (DOT_GROUP,), block.width, byte, "t")

        return serial_loops(nest, [("v", self.down), ("k", self.along)], word)

    def bands(self, values: Values, block: Block, first: Expr, several: int) -> list[Stmt]:
        nest = self.nest
        height, width = (s.at.count for s in (self.window.down, self.window.along))

        def piece(n: Expr) -> list[Stmt]:
            begin = shifted(n, self.piece, width)

            def line(i: Expr) -> list[Stmt]:
                return self._line(values, block, (expr.add(first, i), begin), self._slot(i))

            def row(i: Expr) -> list[Stmt]:
                at = expr.add(first, i)
                here = {**values, self.window.down.at.var: at}
                found = line(expr.linear(i, self.down - 1)) + self.tiles(here, block, i, begin)
                return where(within(at, height, several), found)

            return nest.serial(self.down - 1, line, "l") + nest.serial(several, row, "band")

        return nest.serial(-(-width // self.piece), piece, "p")

    def _slot(self, line: Expr) -> Expr:
        return expr.binary("floormod", line, expr.index(self.down))

    def _line(
        self, values: Values, block: Block, first: tuple[Expr, Expr], slot: Expr
    ) -> list[Stmt]:
        """Statements that pack a line of words, from word `first` of the image."""
        nest, window = self.nest, self.window
        counts = window.down.at.count + self.down - 1, window.along.at.count + self.along - 1

        def asked(places: tuple[Expr, Expr], *, last: tuple[Expr, Expr]) -> Expr | None:
            sides = zip((window.down, window.along), places, last, counts, strict=True)
            asked = (slide.conditions(begin, end, SIDE * n) for slide, begin, end, n in sides)
            return expr.all_of(condition for conditions in asked for condition in conditions)

        def word(p: Expr) -> list[Stmt]:
            at = first[0], expr.add(first[1], p)

            def bytes_(*, is_asked: bool) -> list[Stmt]:
                def byte(t: Expr) -> list[Stmt]:
                    place = _square(*at, t)
                    guard = asked(place, last=place) if is_asked else None

                    def channel(lane: Expr) -> list[Stmt]:
                        address = self.image_at(values, expr.add(block.image, lane), *place)
                        loaded = self.loaded(address, guard)
                        return [Store(self.words, (slot, p, _byte(lane, t)), loaded)]

                    return [nest.spread(block.width, channel)]

                return nest.unrolled(DOT_GROUP, byte, "t")

            corners = (_square(*at, expr.index(t)) for t in (0, DOT_GROUP - 1))
            are_inside = asked(next(corners), last=next(corners))
            whole = bytes_(is_asked=False)
            return where(are_inside, whole, lambda: bytes_(is_asked=True))

        return nest.serial(self.places, word, "p")

    def terms(self, block: Block, row: Expr, result: Expr) -> list[Term]:
        del block
        return [
            Term(
                (self._slot(expr.linear(row, gy)), expr.linear(result, gx)),
                (expr.index(gy), expr.index(gx)),
                0,
            )
            for gy, gx in product(range(self.down), range(self.along))
        ]


def _square(down: Expr, along: Expr, t: Expr) -> tuple[Expr, Expr]:
    """(row, column) of byte `t` in a word of two by two places."""
    side = expr.index(SIDE)
    return (
        expr.add(expr.mul(down, side), expr.binary("floordiv", t, side)),
        expr.add(expr.mul(along, side), expr.binary("floormod", t, side)),
    )


def _byte(lane: Expr, t: Expr) -> Expr:
    """The index of byte `t` of a lane's word."""
    return expr.linear((lane, DOT_GROUP), t)


def _width(window: ByteWindow) -> int:
    return next(w for w in (64, 32, 16) if w <= window.channels.count)


def _block(width: int, n: Expr) -> Block:
    first = expr.mul(n, expr.index(width))
    return Block(first, width, first)
