"""Matrix products whose weights are stored in few bits, by blocks along the sum, on a CPU.

Few rows decode weights in registers, in the loop that multiplies: it reads each word once, and is
as fast as that. More rows share a piece of some columns that is decoded into scratch first, with
the scales in it, and serves all register tiles of a group of rows. Chooses no tile sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Fma, Load
from aot.ir.schedule import StageSchedule
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, If, LoopKind, Stmt, Store
from aot.kernels.match.products import ContractionAxes
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import ReusedScratch, Shape
from aot.kernels.rules.products.products import Placed, Tile
from aot.kernels.rules.products.stored_weights import StoredWeights
from aot.ops.blocked import (
    PANEL,
    Blocks,
)

F32 = DType.F32
TOGETHER, WIDE = 64, 2048  # columns of a workgroup; twice as many where there are so many in all
FEW_ROWS = 2  # rows that decode weights for themselves
GROUP_ROWS = 64  # rows, at least, that a decoded piece of the weights serves
PIECE = 256  # terms that are decoded at a time


class BlockedTiles:
    """The loops, on a CPU, of a product whose weights are stored in blocks."""

    def __init__(
        self,
        nest: Nest,
        output: Output,
        roles: ContractionAxes,
        plan: StageSchedule,
        weights: StoredWeights,
    ) -> None:
        self.nest = nest
        self.output = output
        self.roles = roles = replace(roles, in_panels=True)
        self.weights = weights
        self.scratch = ReusedScratch(nest)
        self.width = min(nest.lanes, PANEL)
        self.chunks = max(plan.columns, self.width) // self.width
        columns = roles.columns.extent
        is_wide = isinstance(columns, int) and columns >= WIDE
        # whole tiles, so that the next workgroup begins where its last one ends
        tile = self.chunks * self.width
        self.together = -(-(2 * TOGETHER if is_wide else TOGETHER) // tile) * tile
        extent: Dim = 1 if roles.rows is None else roles.rows.extent
        self.extent = extent
        self.rows = min(plan.rows, extent) if isinstance(extent, int) else plan.rows
        self.group = -(-GROUP_ROWS // self.rows) * self.rows
        if isinstance(extent, int):
            self.group = min(self.group, -(-extent // self.rows) * self.rows)

    def build(self) -> tuple[Stmt, ...]:
        nest, roles = self.nest, self.roles
        strip = nest.builder.var("nt")
        axes = list(roles.outer)
        groups = Axis(nest.builder.var("mt"), 1)
        if roles.rows is not None:
            groups = Axis(groups.var, dims.ceil_divide(self.extent, self.group))
            axes.append(groups)
        work = self.weights.blocks.k * self.together * self.group

        def body(values: Values) -> list[Stmt]:
            first = expr.index(0)
            if roles.rows is not None:
                first = expr.mul(values[groups.var], expr.index(self.group))
            return self._rows(values, first, strip)

        stmts = nest.grid(axes, body, work, first=1)
        strips = dims.ceil_divide(roles.columns.extent, self.together)
        return (For(strip, strips, LoopKind.WORKGROUP, stmts, axis=0),)

    def _rows(self, values: Values, first: Expr, strip: Expr) -> list[Stmt]:
        """The rows of a group: few by themselves, more together."""
        if isinstance(self.extent, int):
            if self.extent <= FEW_ROWS:
                return self._few(values, first, self.extent, strip)
            return self._many(values, first, strip)
        left = expr.sub(expr.index(self.extent), first)
        is_few = expr.binary("le", left, expr.index(FEW_ROWS))
        rest = dims.modulo(self.extent, self.group)
        few = self._few(values, first, dims.minimum(rest, FEW_ROWS), strip)
        return [If(is_few, tuple(few), tuple(self._many(values, first, strip)))]

    def _few(self, values: Values, first: Expr, count: Dim, strip: Expr) -> list[Stmt]:
        chunks = PANEL // self.width  # one stream of words

        def row(r: Expr) -> list[Stmt]:
            return self._strip(
                strip,
                chunks,
                lambda shape, start: DecodedRow(self, shape).build(
                    values, expr.add(first, r), start
                ),
                rows=1,
            )

        return self.nest.serial(count, row, "r")

    def _many(self, values: Values, first: Expr, strip: Expr) -> list[Stmt]:
        return self._strip(
            strip,
            self.chunks,
            lambda shape, start: _Group(self, shape, values, first, start).build(),
            rows=self.group,
        )

    def _strip(
        self,
        strip: Expr,
        chunks: int,
        build: Callable[[Shape, Expr], list[Stmt]],
        *,
        rows: int,
        strips: Dim = 1,
    ) -> list[Stmt]:
        """Statements for the columns of a workgroup in tiles of `chunks` vectors; with `strips` for
        those of the following workgroups too.
        """
        extent, width = self.roles.columns.extent, self.width
        count = -(-self.together // (chunks * width))
        has_all = strips == 1 and dims.modulo(extent, count * chunks * width) == 0
        has_all_rows = rows == 1 or dims.modulo(self.extent, rows) == 0
        shape = Shape(rows, chunks, width, has_all_rows, has_all)

        def tile(n: Expr) -> list[Stmt]:
            number = expr.add(expr.mul(strip, expr.index(count)), n)
            stmts = build(shape, expr.mul(number, expr.index(chunks)))
            if has_all:
                return stmts
            first = expr.mul(number, expr.index(chunks * width))
            return [If(expr.binary("lt", first, expr.index(extent)), tuple(stmts))]

        return self.nest.serial(dims.multiply(strips, count), tile, "nt")


class DecodedRow(Tile):
    """One row times some vectors of columns, whose weights are decoded where they are used."""

    def __init__(self, tiles: BlockedTiles, shape: Shape) -> None:
        super().__init__(tiles.nest, tiles.output, tiles.roles, PANEL, shape, tiles.scratch)
        self.weights = tiles.weights
        self.part = tiles.nest.builder.scratch("part", F32, self.acc.shape)
        self.lefts = tiles.nest.builder.scratch("lefts", F32, (1,))

    def build(self, values: Values, first: Expr, start: Expr) -> list[Stmt]:
        return _PlacedRow(self, values, first, start).build()


class PlacedBlocks(Placed, ABC):
    """A register tile whose sums are made block by block of the weights.

    Attributes:
        weights: whose blocks its sums run over.
    """

    weights: StoredWeights

    @property
    def _may_begin_with_bias(self) -> bool:
        return False

    def _sum(self) -> list[Stmt]:
        blocks = self.weights.blocks
        whole, rest = divmod(blocks.k, blocks.block)
        stmts = self.nest.serial(whole, lambda b: self._block(b, blocks.block), "b")
        return stmts + (self._block(expr.index(whole), rest) if rest else [])

    @abstractmethod
    def _block(self, block: Expr, terms: int) -> list[Stmt]:
        """Statements that add the sums of a block with `terms` terms."""


class _PlacedRow(PlacedBlocks):
    """A `DecodedRow` at its place in the result."""

    def __init__(self, tile: DecodedRow, values: Values, first: Expr, start: Expr) -> None:
        super().__init__(tile, values, first, start)
        self.weights = tile.weights
        self.part = tile.part
        self.lefts = tile.lefts

    def _block(self, block: Expr, terms: int) -> list[Stmt]:
        """Statements that add the sums of a block with `terms` terms, times its scales."""
        nest, blocks, zero = self.nest, self.weights.blocks, expr.index(0)
        begin = expr.mul(block, expr.index(blocks.block))
        word = expr.mul(block, expr.index(blocks.words_per_block))
        whole, rest = divmod(terms, blocks.per_word)

        def cleared(u: Expr, lane: Expr) -> Stmt:
            return Store(self.part, (zero, u, lane), expr.const(0.0, F32))

        def some(w: Expr, count: int) -> list[Stmt]:
            k = expr.add(begin, expr.mul(w, expr.index(blocks.per_word)))
            return self._words(expr.add(word, w), k, block, count)

        stmts = self.weights.ahead(self._panel(zero, zero)[0], block) + self._each_chunk(cleared)
        if self.weights.minimums is not None:
            stmts.append(Store(self.lefts, (zero,), expr.const(0.0, F32)))
        stmts += nest.serial(whole, lambda w: some(w, blocks.per_word), "w")
        stmts += some(expr.index(whole), rest) if rest else []

        def scaled(u: Expr, lane: Expr) -> Stmt:
            panel, within = self._panel(u, lane)
            scale = self.weights.scale_at(panel, block, within)
            minimum = self.weights.minimum_at(panel, block, within)
            old: Expr = Load(self.acc, (zero, u, lane), F32)
            if minimum is not None:
                old = Fma(Load(self.lefts, (zero,), F32), minimum, old, F32)
            value = Load(self.part, (zero, u, lane), F32)
            return Store(self.acc, (zero, u, lane), Fma(value, scale, old, F32))

        return stmts + self._each_chunk(scaled)

    def _words(self, word: Expr, k: Expr, block: Expr, count: int) -> list[Stmt]:
        """The products of `count` terms from k on, whose weights are in the word."""
        nest, roles, weights = self.nest, self.roles, self.weights
        (axis,) = roles.reduce.axes
        at = self._at(expr.index(0))
        stmts: list[Stmt] = []
        lefts = [
            nest.let(
                expr.substitute(roles.left, {**at, axis[0]: expr.add(k, expr.index(j))}),
                stmts,
                "a",
            )
            for j in range(count)
        ]
        if weights.minimums is not None:
            total: Expr = Load(self.lefts, (expr.index(0),), F32)
            for left in lefts:
                total = expr.add(total, left)
            stmts.append(Store(self.lefts, (expr.index(0),), total))

        def chunk(u: Expr) -> list[Stmt]:
            def lanes(lane: Expr) -> list[Stmt]:
                inner: list[Stmt] = []
                panel, within = self._panel(u, lane)
                held = self.weights.let(nest, weights.held(panel, word, within), inner)
                zero = nest.let(weights.zero_at(panel, block, within), inner, "zero")
                place = (expr.index(0), u, lane)
                total: Expr = Load(self.part, place, F32)
                for j, left in enumerate(lefts):
                    total = Fma(left, weights.decoded(held, j, zero), total, F32)
                return [*inner, Store(self.part, place, total)]

            return self._each_lane(lanes)

        return stmts + nest.unrolled(self.shape.chunks, chunk)


class _Group:
    """A product of some rows and some vectors of columns, whose weights are decoded piece by piece,
    once for all rows.
    """

    def __init__(
        self, tiles: BlockedTiles, shape: Shape, values: Values, first: Expr, start: Expr
    ) -> None:
        self.tiles = tiles
        self.nest = tiles.nest
        self.weights = tiles.weights
        self.first = first
        blocks = tiles.weights.blocks
        self.piece = _piece(blocks)
        scratch = tiles.scratch
        vectors = shape.chunks, shape.width
        self.decoded = scratch.get("decoded", F32, (min(self.piece, blocks.k), *vectors))
        self.sums = scratch.get("sums", F32, (shape.rows, *vectors))
        parts = tiles.nest, tiles.output, tiles.roles, PANEL
        self.tile = Tile(*parts, replace(shape, rows=tiles.rows), scratch)
        self.whole = _PlacedGroup(self.tile, shape, values, first, start)
        self.values, self.start = values, start

    def build(self) -> list[Stmt]:
        nest, shape = self.nest, self.whole.shape
        zero = expr.const(0.0, F32)
        stmts = nest.serial(
            shape.rows,
            lambda r: self.whole._each_chunk(lambda u, lane: Store(self.sums, (r, u, lane), zero)),
            "r",
        )
        whole, rest = divmod(self.weights.blocks.k, self.piece)
        stmts += nest.serial(
            whole, lambda p: self._piece(expr.mul(p, expr.index(self.piece)), self.piece), "p"
        )
        if rest:
            stmts += self._piece(expr.index(whole * self.piece), rest)
        finish = self.whole._finish_row
        return stmts + nest.serial(shape.rows, lambda r: finish(r, self.sums, nest.unrolled), "r")

    def _piece(self, begin: Expr, terms: int) -> list[Stmt]:
        """Adds the products of `terms` terms from `begin` on to the sums of all rows."""
        nest, rows, extent = self.nest, self.tile.shape.rows, self.tiles.extent
        stmts = self._decode(begin, terms)

        def tile(t: Expr) -> list[Stmt]:
            offset = expr.mul(t, expr.index(rows))
            first = expr.add(self.first, offset)
            made = _PlacedPiece(self, first, offset).multiply(begin, terms)
            if dims.modulo(extent, self.tiles.group) == 0:
                return made
            return [If(expr.binary("lt", first, expr.index(extent)), tuple(made))]

        return stmts + nest.serial(self.tiles.group // rows, tile, "mt")

    def _decode(self, begin: Expr, terms: int) -> list[Stmt]:
        """Brings `terms` terms of the columns into scratch, as floats."""
        blocks, nest = self.weights.blocks, self.nest
        per, zero = blocks.per_word, expr.index(0)
        size = expr.index(blocks.block)
        first = expr.binary("floordiv", begin, size) if blocks.count > 1 else zero
        if self.piece <= blocks.block:  # a part of a block
            within = expr.sub(begin, expr.mul(first, size)) if blocks.count > 1 else begin
            word = expr.add(
                expr.mul(first, expr.index(blocks.words_per_block)),
                expr.binary("floordiv", within, expr.index(per)),
            )
            return self._decode_block(first, word, zero, terms)
        whole, rest = divmod(terms, blocks.block)

        def block(n: Expr, count: int) -> list[Stmt]:
            number = expr.add(first, n)
            word = expr.mul(number, expr.index(blocks.words_per_block))
            return self._decode_block(number, word, expr.mul(n, size), count)

        stmts = nest.serial(whole, lambda n: block(n, blocks.block), "b")
        return stmts + (block(expr.index(whole), rest) if rest else [])

    def _decode_block(self, block: Expr, word: Expr, place: Expr, terms: int) -> list[Stmt]:
        """Decodes terms of a block, the first of which begins a word, to `place` on."""
        weights, per, placed = self.weights, self.weights.blocks.per_word, self.whole

        def some(w: Expr, count: int) -> list[Stmt]:
            def chunk(u: Expr) -> list[Stmt]:
                def lanes(lane: Expr) -> list[Stmt]:
                    stmts: list[Stmt] = []
                    panel, within = placed._panel(u, lane)
                    found = weights.held(panel, expr.add(word, w), within)
                    held = weights.let(self.nest, found, stmts)
                    scale = self.nest.let(weights.scale_at(panel, block, within), stmts, "scale")
                    zero = self.nest.let(weights.zero_at(panel, block, within), stmts, "zero")
                    least = weights.minimum_at(panel, block, within)
                    if least is not None:
                        least = self.nest.let(least, stmts, "least")
                    base = expr.add(place, expr.mul(w, expr.index(per)))
                    for j in range(count):
                        value = weights.decoded(held, j, zero)
                        value = (
                            expr.mul(value, scale)
                            if least is None
                            else Fma(value, scale, least, F32)
                        )
                        at = expr.add(base, expr.index(j)), u, lane
                        stmts.append(Store(self.decoded, at, value))
                    return stmts

                return placed._each_lane(lanes)

            return self.nest.unrolled(placed.shape.chunks, chunk)

        whole, rest = divmod(terms, per)
        stmts = self.nest.serial(whole, lambda w: some(w, per), "w")
        return stmts + (some(expr.index(whole), rest) if rest else [])


class _PlacedGroup(Placed):
    """All rows of a group, whose sums are in scratch."""

    def __init__(self, tile: Tile, shape: Shape, values: Values, first: Expr, start: Expr) -> None:
        super().__init__(tile, values, first, start)
        self.shape = shape


class _PlacedPiece(Placed):
    """A register tile of some rows of a group, for a piece of the sum."""

    def __init__(self, group: _Group, first: Expr, offset: Expr) -> None:
        super().__init__(group.tile, group.values, first, group.start)
        self.decoded = group.decoded
        self.sums = group.sums
        self.offset = offset
        self.k = group.nest.builder.var("kv")

    def multiply(self, begin: Expr, terms: int) -> list[Stmt]:
        """Adds the products of the piece's terms to the sums."""
        ((var, _),) = self.roles.reduce.axes
        left = expr.substitute(self.roles.left, {var: expr.add(begin, self.k)})
        acc, sums = self.acc, self.sums

        def at(r: Expr, u: Expr, lane: Expr) -> tuple[Expr, Expr, Expr]:
            return expr.add(self.offset, r), u, lane

        stmts = self._each_row(
            lambda r, u, lane: Store(acc, (r, u, lane), Load(sums, at(r, u, lane), F32))
        )
        stmts += self._loops([Axis(self.k, terms)], {}, left, [])
        return stmts + self._each_row(
            lambda r, u, lane: Store(sums, at(r, u, lane), Load(acc, (r, u, lane), F32))
        )

    def _right(self, values: Values, u: Expr, lane: Expr) -> Expr:
        return Load(self.decoded, (values[self.k], u, lane), F32)

    def _product(
        self, left: Callable[[Expr], Expr], right: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        nest, acc = self.nest, self.acc

        def one_row(r: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            scalar = nest.let(left(r), stmts, "a")

            def one(u: Expr, lane: Expr) -> Stmt:
                old = Load(acc, (r, u, lane), acc.dtype)
                return Store(acc, (r, u, lane), Fma(scalar, right(u, lane), old, F32))

            return stmts + self._each_chunk(one)

        return nest.unrolled(self.shape.rows, one_row, "r")


def _piece(blocks: Blocks) -> int:
    """How many terms are decoded at a time: whole blocks, or a part of one from a word on."""
    if blocks.block <= PIECE:
        return PIECE // blocks.block * blocks.block
    if blocks.count == 1 or blocks.block % PIECE == 0:
        return PIECE
    return blocks.block
