"""A register tile's position, the initial values of its sums, and their epilogue.

The products that are added up between are products.py's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from aot.ir import dims, expr
from aot.ir.expr import Binary, Expr, Load, Reduce
from aot.ir.types import DType
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.nest.borders import masked
from aot.kernels.nest.nest import Output, Values
from aot.kernels.nest.tiles import is_long, packs_bytes
from aot.kernels.rules.products.product import (
    Place,
    Sums,
    Tile,
    divided,
    last_panel,
)
from aot.kernels.stage.tails import where, within

# vectors of a single row whose epilogue is written out, so that its sums stay in registers
MOST_UNROLLED = 4
# rows below which an element is stored after the other where they are neighbours in the result
LEAST_TRANSPOSED = 4
# terms of sums beside which an epilogue through memory takes long
BRIEF = 64

Range = tuple[int, int]
"""From the first one to before the second."""


class TileEnds(Sums):
    """A placed tile without its products: how sums start and how they are finished.

    Attributes:
        values: what the axes around the tile are.
        first: its first row.
        start: its first column, in widths.
        sum_with_bias: the addition of a bias that the sums begin with, and the bias.
        is_clamped: whether rows past the last one read that one again; else guards keep them from
            reading.
    """

    def __init__(self, tile: Tile, place: Place) -> None:
        super().__init__(tile.product.nest, tile.shape, tile.acc)
        _, self.output, self.roles, self.panel, self.scratch = tile.product
        self.pieces, self.in_parts = tile.pieces, tile.in_parts
        self.values, self.first, self.start = place
        self.is_clamped = True
        self.sum_with_bias: tuple[Binary, Load] | None = None

    # What the sums begin with

    def _zeros(self) -> list[Stmt]:
        """Statements that initialise the sums, to 0 or to the bias."""
        stmts: list[Stmt] = []
        if self.pieces is not None:
            stmts += self.zeroed(self.pieces, "u")
        nothing = self.zeroed(self.acc, "u")
        if self.sum_with_bias is None:
            return stmts + nothing
        _, bias = self.sum_with_bias
        column, acc = self.roles.columns.var, self.acc

        def store(r: Expr, u: Expr, lane: Expr) -> Stmt:
            here = {**self.values, column: self._column(u, lane)}
            return Store(acc, (r, u, lane), expr.substitute(bias, here))

        begin = self.each_row(store, "u")
        if self._moves_back or self.shape.has_all_columns:
            return stmts + begin
        return stmts + self._if_whole(begin, self._begin_with_some(bias))

    def _begin_with_some(self, bias: Load) -> list[Stmt]:
        """Initialises the sums of a partial tile with the bias, masked to the columns in bounds."""
        nest, shape, acc, columns = self.nest, self.shape, self.acc, self.roles.columns
        held = self.scratch.get("bias", acc.dtype, acc.shape[1:])

        def one(u: Expr, lane: Expr) -> list[Stmt]:
            at = self._column(u, lane)
            found = expr.substitute(bias, {**self.values, columns.var: at})
            there = expr.binary("lt", at, expr.index(columns.extent))
            return [Store(held, (u, lane), masked(found, there))]

        stmts = nest.serial(
            shape.chunks, lambda u: nest.serial(shape.width, lambda lane: one(u, lane), "c"), "u"
        )
        return stmts + self.each_row(
            lambda r, u, lane: Store(acc, (r, u, lane), Load(held, (u, lane), acc.dtype)), "u"
        )

    @property
    def _may_begin_with_bias(self) -> bool:
        """Whether sums start with the bias: for floats, where that saves as much as it costs. All
        tiles of a target agree, whatever their extents, so that results have the same bits in
        kernels for several extents."""
        is_float = self.acc.dtype is DType.F32
        return self.nest.target.multiplies_by_lane and is_float and self.pieces is None

    def _find_bias(self) -> tuple[Binary, Load] | None:
        """(addition, load) of a per-column bias added to the sums, if sums can start with it; else
        None.
        """
        found = sum_with_bias(self.output, self.roles.reduce)
        if found is None:
            return None
        seen = expr.free_vars(found[1])
        if self.roles.rows is not None and self.roles.rows.var in seen:
            return None
        return found if self.roles.columns.var in seen else None

    # What becomes of the sums

    def _finish(self) -> list[Stmt]:
        """Statements that run the epilogue of the tile and store it.

        Where that is worth it, all is written out for tiles of which all is stored. Else the sums
        go through memory, so that one copy of the epilogue serves all rows.
        """
        nest, shape = self.nest, self.shape
        if self.pieces is None and (nest.is_gpu or self._is_short):
            return self._finish_rows(self.acc, nest.unrolled, None, nest.unrolled)
        if self._is_dense:
            return self._finish_dense()
        if not self._has_ends_in_registers:
            return self._finish_in_memory()
        every = 0, shape.columns
        stmts = nest.unrolled(
            shape.rows,
            lambda r: self._finish_row(r, self.acc, nest.unrolled, has_row=True, some=every),
            "r",
        )
        rows = self._has_rows()
        if rows is not None:
            stmts = [If(rows, tuple(stmts), tuple(self._finish_in_memory(every)))]
        if shape.has_all_columns:
            return stmts
        return self._if_whole(stmts, self._finish_in_memory(self._columns_left()))

    @property
    def _is_short(self) -> bool:
        """Whether the tile is so small that unrolling the epilogue per vector costs little."""
        return self.shape.rows == 1 and self.shape.chunks <= MOST_UNROLLED

    @property
    def _is_written_out(self) -> bool:
        """Whether unrolling the epilogue per vector is worth its code: where the tile's operands
        stay in registers, as with multiply-by-lane; or with few terms and no masked stores, as sums
        stored under masks do not stay in registers."""
        is_plain = self._is_brief and self.shape.has_all_columns and not self.nest.is_gpu
        return self.nest.target.multiplies_by_lane or is_plain

    @property
    def _is_brief(self) -> bool:
        """Whether vectors have so few terms that the epilogue's cost matters."""
        terms = self.roles.terms
        return isinstance(terms, int) and terms <= BRIEF and self.nest.lanes > 1

    @property
    def _has_ends_in_registers(self) -> bool:
        """Whether the epilogue runs on the sums in registers, unrolled."""
        output, roles = self.output, self.roles
        if not self._is_written_out or self.pieces is not None or self._packs_bytes:
            return False
        is_float = self.acc.dtype is DType.F32
        if self._is_short or not is_float or is_long(output.values, roles.reduce):
            return False
        return expr.coefficient(output.address, roles.columns.var) == 1

    def _has_rows(self) -> Expr | None:
        """The condition that all of the tile's rows exist; None where that is sure."""
        if self.shape.has_all_rows or self.roles.rows is None:
            return None
        end = expr.add(self.first, expr.index(self.shape.rows))
        return expr.binary("le", end, expr.index(self.roles.rows.extent))

    def _has_columns(self) -> Expr | None:
        """The condition that all of the tile's columns exist; None where that is certain."""
        if self.shape.has_all_columns:
            return None
        end = self._own_column(expr.index(self.shape.chunks), expr.index(0))
        return expr.binary("le", end, expr.index(self.roles.columns.extent))

    def _if_whole(self, stmts: list[Stmt], rest: list[Stmt]) -> list[Stmt]:
        """`stmts` where all of the tile's columns exist, else `rest`."""
        columns = self._has_columns()
        return stmts if columns is None else [If(columns, tuple(stmts), tuple(rest))]

    def _columns_left(self) -> Range | None:
        """The range of columns that a partial last tile stores; None if there is none, or it is
        unknown."""
        extent, columns = self.roles.columns.extent, self.shape.columns
        if not isinstance(extent, int):
            return None
        left = extent % columns
        return (columns - left, columns) if self._moves_back else (0, left)

    def _finish_in_memory(self, some: Range | None = None) -> list[Stmt]:
        """Statements that finish and store sums by way of memory: of `some` columns, or of all in
        bounds.
        """
        nest, acc, shape = self.nest, self.acc, self.shape
        tile, stored = self.pieces, list[Stmt]()
        if tile is None:
            vectors = (1, shape.columns) if self._packs_bytes else acc.shape[1:]
            tile = memory = self.scratch.get("tile", acc.dtype, (shape.rows, *vectors))

            def store(r: Expr, u: Expr, lane: Expr) -> Stmt:
                total = Load(acc, (r, u, lane), acc.dtype)
                if self._packs_bytes:
                    u, lane = expr.index(0), expr.linear((u, shape.width), lane)
                return Store(memory, (r, u, lane), total)

            stored = self.each_row(store)
        loop = nest.serial if is_long(self.output.values, self.roles.reduce) else nest.unrolled
        if loop is nest.serial or not self._has_rows_side_by_side():
            return stored + self._finish_rows(tile, loop, some)
        if self._has_rows() is None and nest.target.interleaves:
            # then it is columns that are not all there, and stored one by one
            some = self._columns_left()
        return stored + self._finish_blocks(tile, self._finish_rows(tile, loop, some))

    def _finish_rows(
        self,
        source: Scratch,
        loop: Callable[..., list[Stmt]],
        some: Range | None,
        over: Callable[..., list[Stmt]] | None = None,
    ) -> list[Stmt]:
        """Statements that finish and store all rows one after another, arguments as in
        `_finish_in_memory`. Where the last tile's columns are known and sums are short, stores need
        no masks, which are slow on most targets."""
        nest, shape = self.nest, self.shape

        def rows(some: Range | None) -> list[Stmt]:
            each = over or nest.serial
            return each(shape.rows, lambda r: self._finish_row(r, source, loop, some=some), "r")

        left = self._columns_left()
        is_masked = nest.is_gpu or self._packs_bytes or nest.target.has_masks
        if some is not None or shape.has_all_columns or left is None:
            return rows(some)
        if is_masked or not self._is_brief:
            return rows(some)
        if left == (0, self.roles.columns.extent):
            return rows(left)
        return self._if_whole(rows((0, shape.columns)), rows(left))

    @property
    def _packs_bytes(self) -> bool:
        """Whether the vectors of a row are finished together, with their bytes packed into one
        register."""
        return self.pieces is None and packs_bytes(self.nest, self.output, self.roles.columns.var)

    def _has_rows_side_by_side(self) -> bool:
        """Whether rows are contiguous in the result's memory and columns are not."""
        roles, address = self.roles, self.output.address
        if roles.rows is None or self.shape.rows < LEAST_TRANSPOSED or self.nest.lanes == 1:
            return False
        extent = roles.columns.extent
        if isinstance(extent, int) and extent < self.shape.columns:
            return False
        across = expr.coefficient(address, roles.columns.var)
        return expr.coefficient(address, roles.rows.var) == 1 and across not in (0, 1, None)

    def _finish_blocks(self, source: Scratch, by_row: list[Stmt]) -> list[Stmt]:
        """Statements that finish and store several rows at a time, which the backend transposes;
        `by_row` where not all rows and columns exist.
        """
        nest, shape = self.nest, self.shape
        stmts: list[Stmt] = []
        done, count = 0, shape.width
        while count >= LEAST_TRANSPOSED:
            while done + count <= shape.rows:
                stmts += self._finish_block(done, count, source)
                done += count
            count //= 2
        for r in range(done, shape.rows):
            stmts += self._finish_row(
                expr.index(r), source, nest.unrolled, has_row=True, some=(0, shape.columns)
            )
        are_there = expr.all_of(c for c in (self._has_rows(), self._has_columns()) if c is not None)
        return stmts if are_there is None else [If(are_there, tuple(stmts), tuple(by_row))]

    @property
    def _is_dense(self) -> bool:
        """Whether the tile's rows all exist and fill the gap between neighbouring columns in the
        result, so that its stores are contiguous.
        """
        shape, address, rows = self.shape, self.output.address, self.roles.rows
        if rows is None or self.pieces is not None or self._packs_bytes:
            return False
        if not 1 < shape.rows <= self.nest.lanes or not self.nest.target.interleaves:
            return False
        if self._has_rows() is not None or expr.coefficient(address, rows.var) != 1:
            return False
        if expr.coefficient(address, self.roles.columns.var) != shape.rows:
            return False
        return not is_long(self.output.values, self.roles.reduce)

    def _finish_dense(self) -> list[Stmt]:
        """Statements that finish and store all rows together, interleaved by the backend."""
        shape, left = self.shape, self._columns_left()
        if shape.has_all_columns:
            return self._finish_block(0, shape.rows, self.acc)
        if left is None:
            return self._finish_in_memory()
        return self._if_whole(
            self._finish_block(0, shape.rows, self.acc, (0, shape.columns)),
            self._finish_block(0, shape.rows, self.acc, left),
        )

    def _finish_block(
        self, begin: int, count: int, source: Scratch, some: Range | None = None
    ) -> list[Stmt]:
        """Statements that finish and store `count` rows, vector by vector; only columns `some` if
        given."""
        nest, shape = self.nest, self.shape
        stmts: list[Stmt] = []
        for u, first, width in self._parts(some or (0, shape.columns)):

            def row(r: Expr, u: int = u, first: int = first, width: int = width) -> list[Stmt]:
                r = expr.add(r, expr.index(begin))
                return [self._some_lanes(self._at(r, is_clamped=False), source, r, u, first, width)]

            stmts += nest.unrolled(count, row, "r")
        return stmts

    def _some_lanes(
        self, here: Values, source: Scratch, r: Expr, u: int, first: int, count: int
    ) -> Stmt:
        """The epilogue and stores of `count` lanes of one vector in the row at `here`."""
        chunk, begin = expr.index(u), expr.index(first)
        return self.nest.spread(
            count, lambda lane: self._stores(here, source, r, chunk, expr.add(begin, lane))
        )

    def _stores(self, here: Values, source: Scratch, r: Expr, u: Expr, lane: Expr) -> list[Stmt]:
        """The epilogue and stores of one element in the row at `here`."""
        place = {**here, self.roles.columns.var: self._column(u, lane)}
        done = self._done(Load(source, (r, u, lane), source.dtype))
        return self.output.stores(self.nest, place, done.get)

    def _done(self, total: Expr) -> dict[Expr, Expr]:
        """The expressions to substitute in the values that are stored: `total` for the
        reduction.
        """
        done: dict[Expr, Expr] = {self.roles.reduce: expr.cast(total, self.roles.reduce.dtype)}
        if self.sum_with_bias is not None:
            done[self.sum_with_bias[0]] = total
        return done

    def _finish_row(
        self,
        r: Expr,
        source: Scratch,
        loop: Callable[..., list[Stmt]],
        *,
        has_row: bool = False,
        some: Range | None = None,
    ) -> list[Stmt]:
        """Statements that finish and store one row, if it exists; `has_row` says that it surely
        does.

        Args:
            some: the columns that are stored, where it is known which of the tile's.
        """
        roles, shape, nest = self.roles, self.shape, self.nest
        here = self._at(r, is_clamped=False)
        is_whole = self._packs_bytes and source is not self.acc

        def chunk(u: Expr) -> list[Stmt]:
            def lanes(lane: Expr) -> list[Stmt]:
                stores = self._stores(here, source, r, u, lane)
                if shape.has_all_columns or some is not None:
                    return stores
                return [If(self._is_stored(u, lane), tuple(stores))]

            return [nest.spread(shape.columns, lanes)] if is_whole else self.each_lane(lanes)

        if some is None or some == (0, shape.columns):
            stmts = loop(1 if is_whole else shape.chunks, chunk)
        else:
            stmts = [self._some_lanes(here, source, r, *part) for part in self._parts(some)]
        rows = roles.rows
        if rows is None or shape.has_all_rows or has_row:
            return stmts
        return where(within(expr.add(self.first, r), rows.extent, 0), stmts)

    def _parts(self, some: Range) -> Iterator[tuple[int, int, int]]:
        """(chunk, first lane, lanes) of the vectors that cover the columns `some` of a tile."""
        begin, end = some
        width = self.shape.width
        while begin < end:
            u, lane = divmod(begin, width)
            count = min(end - begin, width - lane)
            if count < self.nest.lanes:
                count = 1 << (count.bit_length() - 1)
            elif lane % self.nest.lanes:
                count = self.nest.lanes - lane % self.nest.lanes
                count &= -count
            else:
                count -= count % self.nest.lanes
            yield u, lane, count
            begin += count

    # Where things are

    def _at(self, r: Expr, *, is_clamped: bool = True) -> Values:
        """Index values outside the reduction, for row `r` of the tile."""
        is_clamped = is_clamped and self.is_clamped
        at = self.shape.row_values(self.roles.rows, self.first, r, is_clamped=is_clamped)
        return {**self.values, **at}

    @property
    def _moves_back(self) -> bool:
        """Whether a last tile that would pass the end starts earlier instead: no weight is masked,
        and it stores only the columns that the tile before does not."""
        shape, extent = self.shape, self.roles.columns.extent
        if self.nest.is_gpu or self.roles.is_packed or shape.has_all_columns:
            return False
        least, _ = dims.bounds(extent, dims.NO_BOUNDS)
        return least is not None and least >= shape.columns

    @property
    def _is_masked(self) -> bool:
        """Whether lanes without weights or factors may exist, and are masked."""
        if self.shape.has_all_columns or self._moves_back:
            return False
        if self.roles.has_factors:
            return True
        is_covered = self.shape.columns <= self.panel and self.roles.is_in_panel(self.panel)
        return not self.roles.is_packed and not is_covered

    def _own_column(self, u: Expr, lane: Expr) -> Expr:
        """The column of a lane, as `_column` gives it, in a tile that does not start early."""
        return expr.linear((expr.add(self.start, u), self.shape.width), lane)

    def _column(self, u: Expr, lane: Expr) -> Expr:
        """The column of lane `lane` of chunk `u`."""
        if not self._moves_back:
            return self._own_column(u, lane)
        zero, shape = expr.index(0), self.shape
        last = expr.index(dims.add(self.roles.columns.extent, -shape.columns))
        first = expr.binary("min", self._own_column(zero, zero), last)
        return expr.add(first, expr.linear((u, shape.width), lane))

    def _is_stored(self, u: Expr, lane: Expr) -> Expr:
        """The condition that a lane's column exists, and that this tile is the one to store it."""
        at = self._column(u, lane)
        if self._moves_back:
            return expr.binary("ge", at, self._own_column(expr.index(0), expr.index(0)))
        return expr.binary("lt", at, expr.index(self.roles.columns.extent))

    def _panel(self, u: Expr, lane: Expr) -> tuple[Expr, Expr]:
        """(panel, place within it) of a lane's column."""
        if self.shape.width == self.panel:
            number, within = expr.add(self.start, u), lane
        else:  # a vector never straddles a panel
            number, within = divided(self._column(u, expr.index(0)), self.panel)
            within = expr.add(within, lane)
        # a tile past the last panel reads that one again; its lanes aren't stored
        return number if self._covers() else last_panel(self.roles, self.panel, number), within

    def _covers(self) -> bool:
        """Whether all panels of a tile exist."""
        shape, extent = self.shape, self.roles.columns.extent
        padded = dims.multiply(dims.ceil_divide(extent, self.panel), self.panel)
        return (
            shape.has_all_columns
            or dims.modulo(padded, shape.columns) == 0
            or (shape.chunks == 1 and self.panel % shape.width == 0)
        )


class PlacedTile(TileEnds, ABC):
    """A placed tile with its products between start and finish."""

    def build(self) -> list[Stmt]:
        """All statements of the tile."""
        if self._may_begin_with_bias and not self.in_parts:
            self.sum_with_bias = self._find_bias()
        return self._zeros() + self._sum() + self._finish()

    @abstractmethod
    def _sum(self) -> list[Stmt]:
        """Adds the products to the sums."""


def sum_with_bias(output: Output, reduce: Reduce) -> tuple[Binary, Load] | None:
    """(addition, load) of a bias added to a sum; None if anything else uses the sum."""
    users = {
        node
        for value in output.values
        for node in expr.nodes(value)
        if reduce in expr.children(node)
    }
    if len(users) != 1:
        return None
    (user,) = users
    if not isinstance(user, Binary) or user.op != "add":
        return None
    bias = user.b if user.a is reduce else user.a
    if not isinstance(bias, Load) or bias.guard is not None or bias.dtype is not reduce.dtype:
        return None
    return user, bias
