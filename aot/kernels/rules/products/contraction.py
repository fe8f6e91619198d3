"""Matrix products and convolutions as register tiles of outer products, with lanes along output
columns.

Obeys the plan's rows and columns. The same nest serves matmul and convolution, packed and plain
weights, CPU (VECTOR lanes) and GPU (LANE lanes). Owns which tiles there are, and in which order a
CPU comes to them, so that weights are read from its caches; products.py has one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from aot.analysis.cost.gpu_tiles import Extents, gpu_tile, staged_bytes
from aot.analysis.cost.plan import rest_chunks, tail_rows
from aot.ir import dims, expr
from aot.ir.assumed_extents import LAYER
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load
from aot.ir.schedule import StageSchedule
from aot.ir.types import DType
from aot.kernels.ir.nodes import For, LoopKind, Scratch, Stmt
from aot.kernels.match.products import ContractionAxes, find_axes
from aot.kernels.match.work import Build, Loops, Work
from aot.kernels.nest.borders import without_guard
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.nest.tiles import Shape, over_rows
from aot.kernels.nest.two_ways import up_to
from aot.kernels.rules.products.ahead import Ahead, AskingTile
from aot.kernels.rules.products.blocked_dots import DotBlockTiles, QuantisedRows
from aot.kernels.rules.products.blocked_weights import BlockedTiles
from aot.kernels.rules.products.dot_tiles import DotTile
from aot.kernels.rules.products.dots import (
    COLUMNS_TOGETHER,
    TILES_TOGETHER,
    DotAxes,
    DotRows,
    StagedRows,
    WordRows,
)
from aot.kernels.rules.products.dots_gpu import sum_words
from aot.kernels.rules.products.dots_in_parts import (
    HELD,
    DotTileInParts,
    parts_of,
    rows_in_parts,
)
from aot.kernels.rules.products.dots_in_place import RowsInPlace, TileInPlace, are_in_place
from aot.kernels.rules.products.dots_matrix import MatrixTile, StagedPairs, even, has_matrices
from aot.kernels.rules.products.packed_rows import Packed, PackedTiles
from aot.kernels.rules.products.product import (
    Place,
    Product,
    Tile,
    numbered,
    where_whole,
)
from aot.kernels.rules.products.products import Placed
from aot.kernels.rules.products.products_gpu import GpuTile
from aot.kernels.rules.products.products_staged import StagedTiles, rows_as_one
from aot.kernels.rules.products.row_vectors import are_neighbours, slide_of
from aot.kernels.rules.products.stored_weights import StoredWeights
from aot.kernels.rules.products.sum_pieces import Pieces, TilesInPieces
from aot.kernels.stage.tails import where, within
from aot.ops.blocked import PANEL

# the rows up to which a product has a tile of fewer, and how many that has: one of many first
FEW_ROWS = (63, 8), (1, 1)
# bytes of weights, and passes over them, below which no others are asked for meanwhile
LEAST_AHEAD, LEAST_PASSES = 1 << 16, 4


def schedule_blocked_dots(work: Work) -> Build | None:
    """Tiles of quantised rows times block-quantised weights by integer dot products, on a CPU; None
    for other outputs."""
    found = _blocked(work)
    if found is None or work.blocks is None:
        return None
    product, weights = found
    left = QuantisedRows.of(product.roles)
    if left is None or not DotBlockTiles.fits(work.nest, work.blocks):
        return None
    return DotBlockTiles(product, work.plan, weights, left).build


def schedule_blocked(work: Work) -> Build | None:
    """Tiles of a product with block-quantised weights, on a CPU; None for other outputs."""
    found = _blocked(work)
    return None if found is None else BlockedTiles(found[0], work.plan, found[1]).build


def _blocked(work: Work) -> tuple[Product, StoredWeights] | None:
    """(product, weights) of a CPU product with block-quantised weights; None for others."""
    if work.is_long or work.blocks is None or work.product is None or work.nest.is_gpu:
        return None
    output, roles = work.product
    weights = StoredWeights.of(roles.right, work.blocks)
    if weights is None:
        return None
    return Product.of(work.nest, (output, replace(roles, in_panels=True)), PANEL), weights


def schedule_staged(work: Work) -> Build | None:
    """Tiles whose operands are staged in shared memory, if the plan asks for it; else None."""
    if work.is_long or not work.plan.staged or work.product is None:
        return None
    output = rows_as_one(work.nest, *work.product)
    roles = find_axes(output)
    if roles is None:
        return None
    tiles = StagedTiles.of(Product.of(work.nest, (output, roles), work.panel), work.plan)
    return None if tiles is None else partial(_or_few_rows, work, work.product, tiles.build)


def schedule_tiles(work: Work) -> Build | None:
    """Tiles with the plan's rows and columns; None where the output is no contraction."""
    found = None if work.is_long else work.product
    if found is None:
        return None
    if work.nest.is_gpu:
        found = sum_words(work.nest, *found) or found
    product = Product.of(work.nest, found, work.panel)
    tiles = ContractionTiles(product, work.plan, work.max_weight)
    return partial(_or_few_rows, work, found, tiles.build)


def _or_few_rows(work: Work, found: tuple[Output, ContractionAxes], tiles: Build) -> Loops:
    """The loops of `tiles`; for a symbolic number of rows also a tile of few rows, chosen at run
    time. Not for windows, since an image is seldom a single point.
    """
    nest, (_, roles), usual = work.nest, found, tiles()
    if work.has_windows or roles.rows is None:
        return usual
    product = Product.of(nest, found, work.panel)
    for most, height in FEW_ROWS:
        least = work.panel if work.blocks is not None else 1
        tile = _tile_of_few(nest, roles, work.plan, (height, most), least)
        if tile is None:
            continue
        rows, columns, shares = tile
        made = replace(work.plan, rows=rows, columns=columns, shares=shares, staged=0)
        few = ContractionTiles(product, made, work.max_weight)
        usual = up_to(nest.builder, roles.rows.extent, most, few.build(), usual)
    return usual


def _tile_of_few(
    nest: Nest, roles: ContractionAxes, plan: StageSchedule, few: tuple[int, int], least: int
) -> tuple[int, int, int] | None:
    """(rows, columns, lanes per sum) of a GPU's tile for few rows, as for a language model's next
    tokens: tiles of many rows would leave most lanes idle. None where windows slide over rows, or
    the row count is known.
    """
    height, most = few
    rows, axes = roles.rows, roles.summed
    if not nest.is_gpu or rows is None or isinstance(rows.extent, int) or len(axes) != 1:
        return None
    low, _ = dims.bounds(rows.extent, dims.NO_BOUNDS)
    if (low is not None and low > most) or any(load.guard for load in expr.loads(roles.left)):
        return None
    others = dims.product([axis.extent for axis in roles.outer])
    columns, terms = (
        n if isinstance(n, int) else LAYER for n in (roles.columns.extent, axes[0].extent)
    )
    is_in_pieces = roles.reduce.dtype is DType.F16
    extents = Extents(height, columns, others, terms, terms, is_in_pieces)
    made = gpu_tile(extents, nest.target, nest.lanes, least)
    # beside what the tile of many rows has in shared memory
    staged = staged_bytes(plan.rows, plan.columns, 1, plan.staged) if plan.staged else 0
    gpu = nest.target.gpu
    if gpu is not None and 4 * math.prod(made) + staged > gpu.max_shared_bytes:
        whole = replace(extents, is_in_pieces=True)
        made = gpu_tile(whole, nest.target, nest.lanes, least)
    return made


def may_repeat_rows(product: Product) -> bool:
    """Whether rows may be computed and stored twice, so that every tile has all its rows: this is
    safe where results overwrite no memory that tiles read."""
    output, roles = product.output, product.roles
    of_sums = set(expr.nodes(roles.reduce))
    found = {e for value in output.values for e in expr.nodes(value)} - of_sums
    loads = [e for e in found if isinstance(e, Load)]
    return all(expr.free_vars(load) <= {roles.columns.var} for load in loads)


class ContractionTiles:
    """The tiles of a contraction and the loops around them.

    Where only the device knows an extent, tiles of the plan's size have all that they cover; what
    is left of the rows is done by lower ones, and of the columns by narrower ones.
    """

    def __init__(self, product: Product, plan: StageSchedule, max_weight: int) -> None:
        nest, _, roles, panel, _ = self.product = product
        self.nest, self.roles = nest, roles
        extent = None if roles.rows is None else roles.rows.extent
        self.rows = 1 if extent is None else plan.rows
        if isinstance(extent, int) and not nest.is_gpu:
            self.rows = min(self.rows, extent)
        dotted = DotAxes.of(nest, roles, panel, max_weight)
        self.width = plan.columns if nest.is_gpu else min(plan.columns, panel)
        self.chunks = plan.columns // self.width
        across = roles.columns.extent
        if isinstance(across, int) and not nest.is_gpu:
            # vectors are no wider than the columns need
            narrow = 1 << max(across - 1, 1).bit_length()
            if narrow < self.width:
                self.width, self.chunks = narrow, 1
        self.columns = self.chunks * self.width
        self.shares = plan.shares
        self.staged: DotRows | None = None
        self.parts = 1  # lanes of a column
        if dotted is not None and has_matrices(nest, roles, dotted, self.rows, self.width):
            self.rows = even(self.rows)
            self.staged = StagedPairs.of(nest, roles, dotted, self.rows)
        elif dotted is not None:
            is_in_place = are_in_place(nest, dotted)
            if self.chunks == 1:
                self.parts = parts_of(nest, roles, dotted, self.width, is_in_place=is_in_place)
            if self.parts > 1:
                self.rows = rows_in_parts(roles, dotted, self.rows)
            make = RowsInPlace if is_in_place else StagedRows
            self.staged = make(nest, roles, dotted, self.rows)
        self.ahead: Ahead | None = None

    def build(self) -> tuple[Stmt, ...]:
        roles, nest = self.roles, self.nest
        if (pieces := self._pieces()) is not None:
            shape = Shape(self.rows, self.chunks, self.width, True, True)
            return TilesInPieces(self.product, pieces, shape).build()
        packed = Packed.of(nest, roles) if self.staged is None else None
        if packed is None:
            return self._usual()
        may_repeat = may_repeat_rows(self.product)
        stmts = PackedTiles(self.product, packed, may_repeat=may_repeat).build()
        if packed.misfits == 0:
            return stmts
        return up_to(nest.builder, packed.misfits, 0, stmts, self._usual())

    def _usual(self) -> tuple[Stmt, ...]:
        """Loops over tiles that read rows in place, without packing."""
        roles, nest = self.roles, self.nest
        axes = list(roles.outer)
        row_tile = Axis(nest.builder.var("mt"), dims.ceil_divide(roles.row_count, self.rows))
        if roles.rows is not None:
            axes.append(row_tile)
        work = dims.multiply(roles.terms, self.rows * self.columns // 16 + 1)

        tiles = dims.ceil_divide(roles.columns.extent, self.columns * self.together)
        in_weight = expr.free_vars(roles.weight)
        passes = dims.product([a.extent for a in axes if a.var not in in_weight])
        near = self._near(tiles, passes)
        self._ask_ahead(near, passes, tuple(a for a in axes if a.extent != 1))
        along, block = nest.builder.var("nt"), nest.builder.var("nb")

        def body(values: Values) -> list[Stmt]:
            first = expr.index(0)
            if roles.rows is not None:
                first = expr.linear((values[row_tile.var], self.rows))
            if near == tiles:
                return self._some_columns(Place(values, first, along))
            stmts: list[Stmt] = []
            number = nest.let(expr.linear((block, near), along), stmts, "nt")
            found = self._some_columns(Place(values, first, number))
            return stmts + where(within(number, tiles, near), found)

        # on a GPU the many tiles go along x, the one axis that may be long; on a CPU x runs
        # fastest, and neighbours there share the rows
        along_columns, along_rows = (1, 0) if nest.is_gpu else (0, 1)
        stmts = nest.grid(axes, body, work, first=along_rows)
        stmts = (For(along, near, LoopKind.WORKGROUP, stmts, axis=along_columns),)
        if near != tiles:
            blocks = dims.ceil_divide(tiles, near)
            stmts = (For(block, blocks, LoopKind.WORKGROUP, stmts, axis=2),)
        return stmts

    def _pieces(self) -> Pieces | None:
        """How sums are split into pieces whose weights stay in a cache while several tiles of rows
        use them; None where rows don't share weights.
        """
        roles = self.roles
        if self.staged is not None or self._has_rows_together or roles.rows is None:
            return None
        in_weight = expr.free_vars(roles.weight)
        if any(a.var in in_weight for a in roles.outer):
            return None  # not all rows read the same weights
        extents = [roles.columns.extent, roles.rows.extent, *(a.extent for a in roles.outer)]
        rows = dims.product(extents[1:])
        if not all(isinstance(n, int) for n in extents) or not isinstance(rows, int):
            return None
        return Pieces.of(self.nest, roles, self.columns) if rows > self.rows else None

    def _near(self, tiles: Dim, passes: Dim) -> Dim:
        """The number of column tiles to run through before the rows' next pass, given the number of
        `passes`: their weights fill half of the L2 cache, so that weights are read from memory
        once.
        """
        # beside the next ones, where tiles ask for these
        cache = self.nest.target.l2_bytes // (4 if self._asks else 2)
        if self.nest.is_gpu or passes == 1:
            return tiles
        each = self.columns * self.together * self.roles.weight.dtype.bytes
        # a sum over nothing has no weights, and nothing at all no tiles
        taken = dims.maximum(1, dims.multiply(self.roles.terms, each))
        fitting = dims.maximum(1, dims.floor_divide(cache, taken))
        if not isinstance(tiles, int) or not isinstance(fitting, int):
            return dims.maximum(1, dims.minimum(tiles, fitting))
        if tiles == 0:
            return 1
        blocks = -(-tiles // fitting)
        return -(-tiles // blocks)

    def _ask_ahead(self, near: Dim, passes: Dim, axes: tuple[Axis, ...]) -> None:
        """Lets tiles prefetch the weights of the next column tiles; the last tiles prefetch those
        of the next kernel, which follow in memory.
        """
        roles, staged = self.roles, self.staged
        in_weight = expr.free_vars(roles.weight)
        if not self._asks or any(a.var in in_weight for a in axes):
            return
        if isinstance(passes, int) and passes < LEAST_PASSES:
            return
        if staged is not None and not (isinstance(passes, int) and isinstance(near, int)):
            return
        terms = roles.terms if staged is None else staged.axes.size
        distance = dims.product([near, self.together * self.columns, terms])
        size = roles.weight.dtype.bytes
        if not isinstance(distance, int) or distance * size >= LEAST_AHEAD:
            self.ahead = Ahead(distance, passes, axes)

    @property
    def _asks(self) -> bool:
        """Whether tiles may prefetch weights during their multiplications."""
        staged, nest, roles = self.staged, self.nest, self.roles
        if nest.is_gpu or nest.lanes == 1 or not roles.is_packed:
            return False
        if staged is None:
            is_plain = roles.weight.dtype is DType.F32 and not nest.target.multiplies_by_lane
            return is_plain and AskingTile.fits(roles)
        is_plain = not isinstance(staged, StagedPairs)
        return is_plain and not staged.has_row_vectors(self.rows, self.columns)

    def _some_columns(self, at: Place) -> list[Stmt]:
        """Statements for a workgroup's columns: `together` tiles if rows are staged in scratch,
        else one. Places count column tiles."""
        if self.staged is None:
            return self._columns(at)
        tiles = dims.ceil_divide(self.roles.columns.extent, self.columns)
        begin = expr.linear((at.start, self.together))
        return self.staged.fill(at.values, at.first) + numbered(
            *(self.nest, begin, self.together, tiles),
            lambda number: self._columns(at._replace(start=number)),
            "nt",
        )

    @property
    def together(self) -> int:
        """The number of column tiles that one workgroup computes."""
        if self.staged is None:
            return 1
        tiles = dims.ceil_divide(self.roles.columns.extent, self.columns)
        columns = COLUMNS_TOGETHER * (2 if isinstance(self.staged, StagedPairs) else 1)
        together = max(TILES_TOGETHER, columns // self.columns)
        if not isinstance(tiles, int) or not tiles:
            return together
        return -(-tiles // -(-tiles // together))  # as many in each workgroup

    def _columns(self, at: Place) -> list[Stmt]:
        """Statements for all columns of one tile, given by its number."""
        extent = self.roles.columns.extent
        start = expr.linear((at.start, self.chunks))
        place = at._replace(start=start)
        is_divided = dims.modulo(extent, self.columns) == 0
        if is_divided or isinstance(extent, int) or self.nest.is_gpu or self.chunks == 1:
            return self._rows(place, self.chunks, has_all=is_divided)
        end = expr.linear((expr.add(at.start, expr.index(1)), self.columns))
        whole = self._rows(place, self.chunks, has_all=True)
        left = dims.ceil_divide(dims.modulo(extent, self.columns), self.width)
        has_all = dims.modulo(extent, self.width) == 0
        rest: list[Stmt] = []
        done: Dim = 0
        for chunks in rest_chunks(self.chunks):
            count = dims.floor_divide(dims.add(left, dims.multiply(done, -1)), chunks)
            begin = expr.add(start, expr.index(done))

            def tiles(n: Expr, chunks: int = chunks, begin: Expr = begin) -> list[Stmt]:
                at = place._replace(start=expr.add(begin, expr.linear((n, chunks))))
                return self._rows(at, chunks, has_all=has_all)

            rest += self.nest.serial(count, tiles, "nr")
            done = dims.add(done, dims.multiply(count, chunks))
        return where_whole(end, extent, whole, rest)

    def _tile(self, shape: Shape, at: Place, staged_first: Expr) -> list[Stmt]:
        """Statements for one tile at a place; its rows, if staged, were staged from
        `staged_first`."""
        if self.nest.is_gpu:
            return GpuTile(self.product, shape, self.shares).build(at)
        tile = Tile(self.product, shape, in_parts=isinstance(self.staged, StagedPairs))
        if self.staged is None:
            plain = Placed(tile, at) if self.ahead is None else AskingTile(tile, at, self.ahead)
            return plain.build()
        row = _behind(at.first, staged_first)
        if isinstance(self.staged, StagedPairs):
            return MatrixTile(tile, self.staged, row, at).build()
        assert isinstance(self.staged, WordRows)
        placed = TileInPlace if isinstance(self.staged, RowsInPlace) else DotTile
        return placed(tile, self.staged, row, at, self.ahead).build()

    def _rows(self, at: Place, chunks: int, *, has_all: bool) -> list[Stmt]:
        """Statements for all rows that one tile of the plan's height has, with smaller tiles for
        the remainder."""
        before: list[Stmt] = []
        words: Scratch | None = None

        def build(shape: Shape, first: Expr) -> list[Stmt]:
            nonlocal words
            place = at._replace(first=first)
            if not isinstance(self.staged, WordRows) or self.parts == 1:
                return self._tile(shape, place, at.first)
            tile = Tile(self.product, shape, self.parts * shape.width, in_parts=True)
            made = DotTileInParts(tile, self.staged, _behind(first, at.first), place, words)
            if words is None and made.steps <= HELD:
                before.extend(made.hold_words())
                words = made.held
            return made.build()

        first, extent = at.first, self.roles.row_count
        shape = Shape(self.rows, chunks, self.width, True, has_all)
        height = tail_rows(self.rows, shape.columns, self.nest.lanes)
        is_split = self.parts > 1 or (self._has_rows_together and self.staged is None)
        is_known = isinstance(extent, int) and extent >= self.rows and not self.nest.is_gpu
        if is_split and self.parts == 1 and is_known and may_repeat_rows(self.product):
            if dims.modulo(extent, self.rows) == 0:
                return before + build(shape, first)
            last = expr.index(dims.add(extent, -self.rows))
            return before + build(shape, expr.binary("min", first, last))
        stmts = over_rows(self.nest, extent, first, shape, height, build, is_split=is_split)
        return before + stmts

    @property
    def _has_rows_together(self) -> bool:
        """Whether the scalars of neighbouring rows, or the elements under their windows, are loaded
        a vector at a time.
        """
        roles, nest = self.roles, self.nest
        if roles.rows is None:
            return False
        free, dtype = expr.transform(roles.left, without_guard), roles.reduce.dtype
        axes = [Axis(v, n) for v, n in roles.reduce.axes]
        if slide_of(nest, free, roles.rows.var, axes, dtype) is not None:
            return True
        is_whole = self.rows % nest.lanes == 0
        return is_whole and are_neighbours(nest, free, roles.rows.var, dtype)


def _behind(first: Expr, base: Expr) -> Expr:
    """The distance in rows from `base` to `first`."""
    return expr.index(0) if first is base else expr.sub(first, base)
