"""Matrix products with low-bit weights, quantised in blocks along the sum, on a CPU.

Few rows decode weights in registers, in the loop that multiplies: it reads each word once, and is
as fast as that. More rows share a piece of some columns that is decoded into scratch first, with
the scales in it, and serves all register tiles of a group of rows. Chooses no tile sizes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Fma, Load
from aot.ir.schedule import StageSchedule
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, LoopKind, Scratch, Stmt, Store
from aot.kernels.nest.nest import Axis, Values
from aot.kernels.nest.tiles import Shape
from aot.kernels.rules.products.product import (
    Place,
    Product,
    Tile,
    divided,
    each_part,
    where_whole,
)
from aot.kernels.rules.products.products import SummedTile
from aot.kernels.rules.products.stored_weights import StoredWeights
from aot.kernels.rules.products.tile_ends import PlacedTile, TileEnds
from aot.kernels.stage.tails import where, within
from aot.ops.blocked import PANEL, Blocks

F32 = DType.F32
TOGETHER, WIDE = 64, 2048  # columns of a workgroup; twice as many where there are so many in all
FEW_ROWS = 2  # rows that decode weights for themselves
GROUP_ROWS = 64  # rows, at least, that a decoded piece of the weights serves
PIECE = 256  # terms that are decoded at a time


class BlockedTiles:
    """CPU loops of a product with block-quantised weights."""

    def __init__(self, product: Product, plan: StageSchedule, weights: StoredWeights) -> None:
        nest, _, roles, _, _ = self.product = product
        self.nest, self.roles, self.weights = nest, roles, weights
        self.width = min(nest.lanes, PANEL)
        self.chunks = max(plan.columns, self.width) // self.width
        columns = roles.columns.extent
        is_wide = isinstance(columns, int) and columns >= WIDE
        # whole tiles, so that the next workgroup begins where its last one ends
        tile = self.chunks * self.width
        self.together = -(-(2 * TOGETHER if is_wide else TOGETHER) // tile) * tile
        extent = self.extent = roles.row_count
        self.rows = min(plan.rows, extent) if isinstance(extent, int) else plan.rows
        self.group = -(-GROUP_ROWS // self.rows) * self.rows
        if isinstance(extent, int):
            self.group = min(self.group, -(-extent // self.rows) * self.rows)

    def build(self) -> tuple[Stmt, ...]:
        nest, roles = self.nest, self.roles
        strip = nest.builder.var("nt")
        axes = list(roles.outer)
        groups = Axis(nest.builder.var("mt"), dims.ceil_divide(self.extent, self.group))
        if roles.rows is not None:
            axes.append(groups)
        work = self.weights.blocks.k * self.together * self.group

        def body(values: Values) -> list[Stmt]:
            first = expr.index(0)
            if roles.rows is not None:
                first = expr.linear((values[groups.var], self.group))
            return self._rows(Place(values, first, strip))

        stmts = nest.grid(axes, body, work, first=1)
        strips = dims.ceil_divide(roles.columns.extent, self.together)
        return (For(strip, strips, LoopKind.WORKGROUP, stmts, axis=0),)

    def _rows(self, at: Place) -> list[Stmt]:
        """Statements for a group of rows: few rows by `_few`, more by `_many`. Places count strips
        of columns."""
        if isinstance(self.extent, int):
            return self._few(at, self.extent) if self.extent <= FEW_ROWS else self._many(at)
        left = expr.sub(expr.index(self.extent), at.first)
        rest = dims.modulo(self.extent, self.group)
        few = self._few(at, dims.minimum(rest, FEW_ROWS))
        return where_whole(left, FEW_ROWS, few, self._many(at))

    def _few(self, at: Place, count: Dim) -> list[Stmt]:
        chunks = PANEL // self.width  # one stream of words

        def build(shape: Shape, place: Place) -> list[Stmt]:
            return DecodedRow(Tile(self.product, shape, in_parts=True), self.weights, place).build()

        def row(r: Expr) -> list[Stmt]:
            return self._strip(at._replace(first=expr.add(at.first, r)), chunks, build, rows=1)

        return self.nest.serial(count, row, "r")

    def _many(self, at: Place) -> list[Stmt]:
        def build(shape: Shape, place: Place) -> list[Stmt]:
            return _Group(self, shape, place).build()

        return self._strip(at, self.chunks, build, rows=self.group)

    def _strip(
        self,
        at: Place,
        chunks: int,
        build: Callable[[Shape, Place], list[Stmt]],
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
            number = expr.linear((at.start, count), n)
            stmts = build(shape, at._replace(start=expr.linear((number, chunks))))
            if has_all:
                return stmts
            return where(within(expr.linear((number, chunks * width)), extent, 0), stmts)

        return self.nest.serial(dims.multiply(strips, count), tile, "nt")


class PlacedBlocks(PlacedTile):
    """A placed register tile that sums block by block of the weights.

    Attributes:
        weights: whose blocks its sums run over.
    """

    def __init__(self, tile: Tile, weights: StoredWeights, place: Place) -> None:
        super().__init__(tile, place)
        self.weights = weights

    def _sum(self) -> list[Stmt]:
        blocks = self.weights.blocks
        return each_part(self.nest, blocks.k, blocks.block, self._block, "b")

    @abstractmethod
    def _block(self, block: Expr, terms: int) -> list[Stmt]:
        """Statements that add the sums of a block with `terms` terms."""


class DecodedRow(PlacedBlocks):
    """One row times several vectors of columns, with weights decoded at their use.

    It rounds and adds as a group of rows does, so that a row has the same result in both.
    """

    def __init__(self, tile: Tile, weights: StoredWeights, place: Place) -> None:
        super().__init__(tile, weights, place)
        scratch, vectors = self.nest.builder.scratch, self.acc.shape[1:]
        self.scales = scratch("scales", F32, vectors)
        self.minimums = None
        if weights.minimums is not None:
            self.minimums = scratch("minimums", F32, vectors)

    def _block(self, block: Expr, terms: int) -> list[Stmt]:
        """Statements that add the products of a block with `terms` terms."""
        nest, blocks = self.nest, self.weights.blocks
        begin, word = (
            expr.linear((block, blocks.block)),
            expr.linear((block, blocks.words_per_block)),
        )

        def scale(u: Expr, lane: Expr) -> Stmt:
            panel, within = self._panel(u, lane)
            return Store(self.scales, (u, lane), self.weights.scale_at(panel, block, within))

        def minimum(u: Expr, lane: Expr) -> Stmt:
            panel, within = self._panel(u, lane)
            found = self.weights.minimum_at(panel, block, within)
            assert found is not None and self.minimums is not None
            return Store(self.minimums, (u, lane), found)

        def some(w: Expr, count: int) -> list[Stmt]:
            k = expr.add(begin, expr.linear((w, blocks.per_word)))
            return self._words(expr.add(word, w), k, block, count)

        zero = expr.index(0)
        stmts = self.weights.ahead(self._panel(zero, zero)[0], block) + self.each_chunk(scale)
        if self.minimums is not None:
            stmts += self.each_chunk(minimum)
        return stmts + each_part(nest, terms, blocks.per_word, some, "w")

    def _words(self, word: Expr, k: Expr, block: Expr, count: int) -> list[Stmt]:
        """Statements that multiply `count` terms from k by the weights in one word."""
        nest, roles, weights = self.nest, self.roles, self.weights
        (axis,) = roles.reduce.axes
        at = self._at(expr.index(0))
        stmts: list[Stmt] = []
        terms = ({**at, axis[0]: expr.add(k, expr.index(j))} for j in range(count))
        lefts = [nest.let(expr.substitute(roles.left, term), stmts, "a") for term in terms]

        def vector(u: Expr, lane: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            panel, within = self._panel(u, lane)
            held = weights.let(nest, weights.held(panel, word, within), inner)
            zero = nest.let(weights.zero_at(panel, block, within), inner, "zero")
            scale = nest.let(Load(self.scales, (u, lane), F32), inner, "scale")
            least: Expr | None = None
            if self.minimums is not None:
                least = nest.let(Load(self.minimums, (u, lane), F32), inner, "least")
            place = (expr.index(0), u, lane)
            total: Expr = Load(self.acc, place, F32)
            for j, left in enumerate(lefts):
                weight = weights.scaled(held, j, zero, scale, least)
                total = Fma(left, weight, total, F32)
            return [*inner, Store(self.acc, place, total)]

        return stmts + self.each_vector(vector)


class _Group:
    """Several rows times several vectors of columns, with weights decoded in pieces, once for all
    rows.
    """

    def __init__(self, tiles: BlockedTiles, shape: Shape, place: Place) -> None:
        self.tiles, self.nest, self.weights, self.place = tiles, tiles.nest, tiles.weights, place
        blocks = tiles.weights.blocks
        self.piece = _piece(blocks)
        scratch = tiles.product.scratch
        vectors = shape.chunks, shape.width
        self.decoded = scratch.get("decoded", F32, (min(self.piece, blocks.k), *vectors))
        self.sums = scratch.get("sums", F32, (shape.rows, *vectors))
        self.tile = Tile(tiles.product, replace(shape, rows=tiles.rows))
        self.whole = _PlacedGroup(self.tile, place, shape)

    def build(self) -> list[Stmt]:
        nest, size = self.nest, self.piece
        stmts = self.whole.begin(self.sums)
        stmts += each_part(
            *(nest, self.weights.blocks.k, size),
            lambda p, terms: self._piece(expr.linear((p, size)), terms),
            "p",
        )
        return stmts + self.whole.finish(self.sums)

    def _piece(self, begin: Expr, terms: int) -> list[Stmt]:
        """Statements that add the products of `terms` terms from `begin` to the sums of all
        rows."""
        nest, rows, extent = self.nest, self.tile.shape.rows, self.tiles.extent
        stmts = self._decode(begin, terms)

        def tile(t: Expr) -> list[Stmt]:
            behind = expr.linear((t, rows))
            first = expr.add(self.place.first, behind)
            made = _PlacedPiece(self, first, behind).multiply(begin, terms)
            return where(within(first, extent, self.tiles.group), made)

        return stmts + nest.serial(self.tiles.group // rows, tile, "mt")

    def _decode(self, begin: Expr, terms: int) -> list[Stmt]:
        """Statements that decode `terms` terms of the columns into scratch, as floats."""
        blocks, zero = self.weights.blocks, expr.index(0)
        size, words = blocks.block, blocks.words_per_block
        first = expr.binary("floordiv", begin, expr.index(size)) if blocks.count > 1 else zero
        if self.piece <= size:  # a part of a block
            within = expr.sub(begin, expr.linear((first, size))) if blocks.count > 1 else begin
            word = expr.linear((first, words), divided(within, blocks.per_word)[0])
            return self._decode_block(first, word, zero, terms)

        def block(n: Expr, count: int) -> list[Stmt]:
            number = expr.add(first, n)
            return self._decode_block(
                number, expr.linear((number, words)), expr.linear((n, size)), count
            )

        return each_part(self.nest, terms, size, block, "b")

    def _decode_block(self, block: Expr, word: Expr, place: Expr, terms: int) -> list[Stmt]:
        """Statements that decode a block's terms from the start of a word, to scratch from
        `place`."""
        weights, per, let = self.weights, self.weights.blocks.per_word, self.nest.let

        def some(w: Expr, count: int) -> list[Stmt]:
            def vector(u: Expr, lane: Expr) -> list[Stmt]:
                stmts: list[Stmt] = []
                panel, within = self.whole._panel(u, lane)
                found = weights.held(panel, expr.add(word, w), within)
                held = weights.let(self.nest, found, stmts)
                scale = let(weights.scale_at(panel, block, within), stmts, "scale")
                zero = let(weights.zero_at(panel, block, within), stmts, "zero")
                least = weights.minimum_at(panel, block, within)
                if least is not None:
                    least = let(least, stmts, "least")
                base = expr.add(place, expr.linear((w, per)))
                for j in range(count):
                    scaled = weights.scaled(held, j, zero, scale, least)
                    stmts.append(
                        Store(self.decoded, (expr.add(base, expr.index(j)), u, lane), scaled)
                    )
                return stmts

            return self.whole.each_vector(vector)

        return each_part(self.nest, terms, per, some, "w")


class _PlacedGroup(TileEnds):
    """All rows of a group, with their sums in scratch."""

    def __init__(self, tile: Tile, place: Place, shape: Shape) -> None:
        super().__init__(tile, place)
        self.shape = shape

    def begin(self, sums: Scratch) -> list[Stmt]:
        """Statements that zero the sums in scratch."""
        zero = expr.const(0.0, F32)

        def row(r: Expr) -> list[Stmt]:
            return self.each_chunk(lambda u, lane: Store(sums, (r, u, lane), zero))

        return self.nest.serial(self.shape.rows, row, "r")

    def finish(self, sums: Scratch) -> list[Stmt]:
        """Statements that run the epilogue of all rows and store them."""
        each = self._finish_row
        return self.nest.serial(self.shape.rows, lambda r: each(r, sums, self.nest.unrolled), "r")


class _PlacedPiece(SummedTile):
    """A register tile of some of a group's rows, for one decoded piece of the sum."""

    def __init__(self, group: _Group, first: Expr, within: Expr) -> None:
        super().__init__(group.tile, group.place._replace(first=first))
        self.decoded, self.sums, self.within = group.decoded, group.sums, within
        self.k = group.nest.builder.var("kv")

    def multiply(self, begin: Expr, terms: int) -> list[Stmt]:
        """Adds the products of the piece's terms to the sums."""
        ((var, _),) = self.roles.reduce.axes
        left = expr.substitute(self.roles.left, {var: expr.add(begin, self.k)})
        acc, sums = self.acc, self.sums

        def at(r: Expr, u: Expr, lane: Expr) -> tuple[Expr, Expr, Expr]:
            return expr.add(self.within, r), u, lane

        stmts = self.each_row(
            lambda r, u, lane: Store(acc, (r, u, lane), Load(sums, at(r, u, lane), F32))
        )
        stmts += self._loops([Axis(self.k, terms)], {}, left, [])
        return stmts + self.each_row(
            lambda r, u, lane: Store(sums, at(r, u, lane), Load(acc, (r, u, lane), F32))
        )

    def _right(self, values: Values, u: Expr, lane: Expr) -> Expr:
        return Load(self.decoded, (values[self.k], u, lane), F32)

    def _product(
        self, left: Callable[[Expr], Expr], right: Callable[[Expr, Expr], Expr]
    ) -> list[Stmt]:
        return self.outer_product(left, right)


def _piece(blocks: Blocks) -> int:
    """The number of terms decoded at a time: whole blocks, or a part of a block that starts at a
    word."""
    if blocks.block <= PIECE:
        return PIECE // blocks.block * blocks.block
    if blocks.count == 1 or blocks.block % PIECE == 0:
        return PIECE
    return blocks.block
