"""The attention kernel: an online softmax over tiles of keys, which keeps no score beyond its tile.

Owns its loops on a CPU. What the operands' elements are and where the result's go, the
inliner says: transposes, masks and epilogues around the op cost no memory of their own.

A query keeps the largest score that it has met, the sum of its weights and the mix of values so
far; a tile of keys with a larger score scales the latter two down. A score that is left out is
-inf, and the first largest is the lowest finite number, so that no difference is inf - inf.

Where queries come in parts, as a decoder's prompt does, a query's result must not depend on the
part that it is in: blocks of queries then add in the order of `DecodeAttention`, in as many partial
sums as that has lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.analysis.cost.attention_tiles import keys_of_tile
from aot.errors import InternalError
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Fma, Var
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.match.work import Loops
from aot.kernels.nest.nest import Axis
from aot.kernels.rules.attention.attention_decode import FEW, DecodeAttention
from aot.kernels.rules.attention.attention_elements import Elements, Values, load
from aot.kernels.rules.attention.attention_gpu import OnGpu
from aot.kernels.rules.rule import OpWork

# vectors of a value that a register tile is wide
VECTORS_OF_VALUES = 2
# queries that are turned at once where those of a vector are not all there
FEW_AT_ONCE = 4

Body = Callable[[Expr], Sequence[Stmt]]
# a statement for each key of a register tile, vector of queries and lane
Each = Callable[[Callable[[Expr, Expr, Expr], Stmt]], list[Stmt]]


def schedule_attention(work: OpWork) -> Loops:
    """The loops of an executable around an attention op.

    Raises:
        UnsupportedError: the depth of the queries or values is not known at compile time.
    """
    return (OnGpu if work.nest.is_gpu else _OnCpu)(work).build()


def _tiles(total: Dim, size: int) -> Dim:
    return dims.ceil_divide(total, size)


def folded(source: Scratch, count: int, *place: Expr) -> Expr:
    """The sum of `count` elements of scratch, a power of two, along its first dim: its second half
    is added to the first until one is left, as lanes of a vector are."""
    sums: list[Expr] = [load(source, expr.index(n), *place) for n in range(count)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [expr.add(a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]


class _OnCpu(Elements):
    """Attention on a CPU: each workgroup takes a block of queries.

    Scores: lanes along queries, whose transposes are made once, and keys as scalars; so is their
    softmax, in which no lane asks another. The mix: lanes along the values' width, with weights as
    scalars.

    Attributes:
        partner: the loops for a few queries, whose order of sums blocks have; None: any order.
    """

    partner: DecodeAttention | None = None

    def tile_keys(self) -> int:
        """Keys per tile: its scores stay in the L1 cache beside the keys and values."""
        return keys_of_tile(self.all_keys, self.plan.columns)

    def build(self) -> tuple[Stmt, ...]:
        self._stage_fewer_keys()
        nest, rows = self.nest, self.plan.rows
        block = Axis(nest.builder.var("block"), _tiles(self.queries, rows))
        rest = self._rest()
        few = DecodeAttention(self) if rest else None
        if few is not None and not isinstance(self.queries, int) and self.queries != self.all_keys:
            self.partner = few
        has_blocks = self.queries != rest
        if has_blocks:
            self._take_scratch()

        def one(values: dict[Var, Expr]) -> list[Stmt]:
            first = expr.mul(values[block.var], expr.index(rows))
            whole = self._block(values, first) if has_blocks else []
            if few is None:
                return whole
            is_exact = isinstance(self.queries, int)
            alone = few.build(values, first, rest, is_exact=is_exact)
            if not has_blocks:
                return alone
            left = expr.sub(expr.index(self.queries), first)
            is_few = expr.binary("le", left, expr.index(rest))
            return [If(is_few, tuple(alone), tuple(whole))]

        return nest.grid([*self.axes, block], one, 1 << 30)

    def _stage_fewer_keys(self) -> None:
        """Halves the keys of a tile, on targets without vectors, until the staged keys and values
        fit half of scratch.
        """
        each = self.depth * self._stages_keys() + self.width * self._stages_values()
        columns, left = self.plan.columns, self.nest.target.scratch_bytes // 2
        while self.nest.lanes == 1 and self.keys > columns and 4 * self.keys * each > left:
            self.keys = columns * (self.keys // columns // 2)
            self.multiple = self.keys

    def _stages_keys(self) -> bool:
        """Whether to stage keys in scratch: contiguous keys that need a conversion, such as f16,
        are widened once as vectors for all queries."""
        return self.has_whole_keys() and not self.has_plain_keys()

    def _stages_values(self) -> bool:
        is_plain = self.has_whole_values() and self.has_plain_values()
        return self.width % self.nest.lanes != 0 or not is_plain

    def _rest(self) -> int:
        """The largest number of queries that are computed one by one in a partial block; 0 if none
        are."""
        if not (self.has_whole_keys() or self.has_keys_abreast()) or self.plan.rows == 1:
            return 0
        if not isinstance(self.queries, int):
            return min(FEW, self.plan.rows)
        rest = self.queries % self.plan.rows
        return rest if rest <= FEW else 0

    def _take_scratch(self) -> None:
        rows = self.plan.rows
        self.lanes = self.nest.lanes
        self.vectors = rows // self.lanes
        self.padded = -(-self.width // self.lanes) * self.lanes
        self.q_transposed = self.scratch("q_transposed", self.depth, rows)
        self.weights = self.scratch("weights", self.keys, rows)
        self.mix = self.scratch("mix", rows, self.padded)
        self.largest, self.total, self.shrink = (
            self.scratch(name, rows) for name in ("largest", "total", "shrink")
        )
        self.best = self.scratch("best", self.vectors, self.lanes, space=Space.REGISTER)
        self.staged_keys: Scratch | None = None
        self.staged: Scratch | None = None
        if self._stages_keys():
            self.staged_keys = self.scratch("tile_keys", self.keys, self.depth)
        if self._stages_values():
            self.staged = self.scratch("values", self.keys, self.padded)

    @property
    def is_one_tile(self) -> bool:
        """Whether one tile has all keys, so that sums are never rescaled."""
        return isinstance(self.all_keys, int) and 0 < self.all_keys <= self.keys

    @property
    def is_direct(self) -> bool:
        """Whether the weighted sum of values is stored from registers to the result, without
        scratch in between.
        """
        return self.is_one_tile and self.width % self.lanes == 0

    def _block(self, values: Values, first: Expr) -> list[Stmt]:
        stmts = self._start(values, first)
        stmts += self.nest.serial(
            _tiles(self.all_keys, self.keys), lambda t: self._tile(values, first, t), "t"
        )
        return stmts + self._end(values, first)

    # loops

    def _over_rows(self, body: Callable[[Expr, Expr], Sequence[Stmt]]) -> list[Stmt]:
        """`body(u, lane)` for each query of a block, queries in lanes; the row is `u * lanes +
        lane`."""
        return self.nest.unrolled(
            self.vectors, lambda u: [self.nest.spread(self.lanes, lambda lane: body(u, lane))]
        )

    def _row_of(self, u: Expr, lane: Expr) -> Expr:
        return expr.add(expr.mul(u, expr.index(self.lanes)), lane)

    def _over_width(self, body: Body) -> list[Stmt]:
        """`body(e)` for each element of a padded value, in lanes."""
        size = expr.index(self.lanes)
        return self.nest.serial(
            self.padded // self.lanes,
            lambda c: [
                self.nest.spread(self.lanes, lambda lane: body(expr.add(expr.mul(c, size), lane)))
            ],
            "c",
        )

    def _start(self, values: Values, first: Expr) -> list[Stmt]:
        nest, rows, zero = self.nest, self.plan.rows, self.const(0)
        stmts = self._turn_queries(values, first)
        if self.is_one_tile:
            return stmts
        stmts += self._over_rows(
            lambda u, lane: [
                Store(self.largest, (self._row_of(u, lane),), self.lowest),
                Store(self.total, (self._row_of(u, lane),), zero),
            ]
        )
        return stmts + nest.serial(
            rows, lambda r: self._over_width(lambda e: [Store(self.mix, (r, e), zero)]), "r"
        )

    def _turn_queries(self, values: Values, first: Expr) -> list[Stmt]:
        """Statements that transpose queries into columns; contiguous ones are transposed in
        registers.
        """
        nest, rows, lanes = self.nest, self.plan.rows, self.lanes

        def turn(r: Expr) -> list[Stmt]:
            row = self.real_row(expr.add(first, r), rows)
            return nest.serial(
                self.depth,
                lambda d: [Store(self.q_transposed, (d, r), self.scaled_query(values, row, d))],
                "d",
            )

        side = next((n for n in (16, 8, 4) if n <= lanes and self.depth % n == 0), 0)
        if not side or not self.has_whole_queries():
            return nest.serial(rows, turn, "r")

        def some(start: Expr, count: int) -> list[Stmt]:
            """Transposes `count` queries of the block, from number `start`."""

            def one(c: Expr, d: Expr, lane: Expr) -> list[Stmt]:
                at, r = expr.add(expr.mul(c, expr.index(side)), d), expr.add(start, lane)
                query = self.scaled_query(values, expr.add(first, r), at)
                return [Store(self.q_transposed, (at, r), query)]

            def square(c: Expr) -> list[Stmt]:
                return nest.unrolled(
                    side, lambda d: [nest.spread(count, lambda lane: one(c, d, lane))], "d"
                )

            return nest.serial(self.depth // side, square, "c")

        if dims.modulo(self.queries, rows) == 0:
            return nest.serial(
                self.vectors, lambda u: some(expr.mul(u, expr.index(lanes)), lanes), "u"
            )

        def quarter(n: Expr) -> list[Stmt]:
            start = expr.mul(n, expr.index(FEW_AT_ONCE))
            end = expr.add(expr.add(first, start), expr.index(FEW_AT_ONCE))
            rest = nest.serial(FEW_AT_ONCE, lambda r: turn(expr.add(start, r)), "r")
            are_there = expr.binary("le", end, expr.index(self.queries))
            return [If(are_there, tuple(some(start, FEW_AT_ONCE)), tuple(rest))]

        def vector(u: Expr) -> list[Stmt]:
            start = expr.mul(u, expr.index(lanes))
            end = expr.add(expr.add(first, start), expr.index(lanes))
            quarters = lanes // FEW_AT_ONCE
            begin = expr.mul(u, expr.index(quarters))
            rest = nest.serial(quarters, lambda n: quarter(expr.add(begin, n)), "n")
            are_there = expr.binary("le", end, expr.index(self.queries))
            return [If(are_there, tuple(some(start, lanes)), tuple(rest))]

        return nest.serial(self.vectors, vector, "u")

    def _tile(self, values: Values, first: Expr, tile: Expr) -> list[Stmt]:
        start = expr.mul(tile, expr.index(self.keys))
        stmts = self._stage_keys(values, start)
        columns = self.plan.columns

        def begin(u: Expr, lane: Expr) -> list[Stmt]:
            least = self.lowest if self.is_one_tile else load(self.largest, self._row_of(u, lane))
            return [Store(self.best, (u, lane), least)]

        stmts += self._over_rows(begin)
        stmts += self.nest.serial(
            self.keys // columns,
            lambda j: self._products(values, first, start, expr.mul(j, expr.index(columns))),
            "j",
        )
        stmts += self._online_softmax()
        stmts += self._stage(values, start)
        stmts += self._accumulate_pv(values, first, start)
        end = self.real_row(expr.add(first, expr.index(self.plan.rows - 1)), self.plan.rows)
        return self.reached(end, start, stmts)

    def _stage_keys(self, values: Values, start: Expr) -> list[Stmt]:
        staged, nest = self.staged_keys, self.nest
        if staged is None:
            return []

        def one(t: Expr) -> list[Stmt]:
            key = expr.add(start, t)
            return nest.vectors(
                self.depth, lambda d: [Store(staged, (t, d), self._key_element(values, key, d))]
            )

        return nest.serial(self.keys, one, "t")

    def _key_at(self, values: Values, start: Expr, t: Expr, d: Expr) -> Expr:
        if self.staged_keys is not None:
            return load(self.staged_keys, t, d)
        return self._key_element(values, expr.add(start, t), d)

    def _key_element(self, values: Values, key: Expr, d: Expr) -> Expr:
        """An element of a key, without the key's scale where products are scaled."""
        if self.partner is not None:
            return self.split_key(values, key, d)[0]
        return self.key_element(values, key, d)

    def _splits_values(self) -> bool:
        """Whether weights are scaled by the values' scales, in place of the values."""
        return self.partner is not None and self.width % self.lanes == 0

    def _stage(self, values: Values, start: Expr) -> list[Stmt]:
        staged = self.staged
        if staged is None:
            return []

        def one(t: Expr) -> list[Stmt]:
            key = expr.add(start, t)

            def element(e: Expr) -> Expr:
                if self._splits_values():
                    return self.split_value(values, key, e)[0]
                return self.padded_value(values, key, e)

            return self._over_width(lambda e: [Store(staged, (t, e), element(e))])

        return self.nest.serial(self.keys, one, "t")

    def _products(self, values: Values, first: Expr, start: Expr, at: Expr) -> list[Stmt]:
        """Statements that compute the scores of all queries with a register tile's keys, from the
        tile's key `at`."""
        nest, columns = self.nest, self.plan.columns
        acc = self.scratch("acc", columns, self.vectors, self.lanes, space=Space.REGISTER)

        def each(body: Callable[[Expr, Expr, Expr], Stmt]) -> list[Stmt]:
            return nest.unrolled(
                columns, lambda j: self._over_rows(lambda u, lane: [body(j, u, lane)]), "j"
            )

        def step(d: Expr) -> list[Stmt]:
            def one_key(j: Expr) -> list[Stmt]:
                stmts: list[Stmt] = []
                key = self._key_at(values, start, expr.add(at, j), d)
                scalar = nest.let(key, stmts, "k")

                def add(u: Expr, lane: Expr) -> list[Stmt]:
                    query = load(self.q_transposed, d, self._row_of(u, lane))
                    old = load(acc, j, u, lane)
                    return [Store(acc, (j, u, lane), Fma(scalar, query, old, self.wide))]

                return stmts + self._over_rows(add)

            return nest.unrolled(columns, one_key, "j")

        parts = 1 if self.partner is None or self.partner.is_abreast else self.partner.depth_lanes
        zero = each(lambda j, u, lane: Store(acc, (j, u, lane), self.const(0)))
        if parts == 1:
            stmts = zero + nest.serial(self.depth, step, "d")
        else:
            sums = self.scratch("partial", parts, columns, self.vectors, self.lanes)
            stmts = self._in_parts(acc, sums, parts, each, step)

        def give(j: Expr) -> list[Stmt]:
            key = expr.add(at, j)

            def one(u: Expr, lane: Expr) -> list[Stmt]:
                stmts: list[Stmt] = []
                score: Expr = load(acc, j, u, lane)
                if parts > 1:
                    score = folded(sums, parts, j, u, lane)
                score = self._scaled_product(values, expr.add(start, key), score)
                if not self.has_plain_scores:
                    place = expr.add(first, self._row_of(u, lane))
                    row = self.real_row(place, self.plan.rows)
                    found = self.score(values, row, expr.add(start, key), score, place)
                    score = nest.let(found, stmts, "s")
                larger = self.larger(load(self.best, u, lane), score)
                return [
                    *stmts,
                    Store(self.weights, (key, self._row_of(u, lane)), score),
                    Store(self.best, (u, lane), larger),
                ]

            return self._over_rows(one)

        return stmts + nest.unrolled(columns, give, "j")

    def _in_parts(
        self, acc: Scratch, sums: Scratch, parts: int, each: Each, step: Body
    ) -> list[Stmt]:
        """Statements that compute products in `parts` sums: each of every so manieth term, and the
        first one of the tail's too."""
        nest, depth, size, first = self.nest, self.depth, expr.index(parts), expr.index(0)

        def keep(p: Expr) -> list[Stmt]:
            return each(lambda j, u, lane: Store(sums, (p, j, u, lane), load(acc, j, u, lane)))

        def part(p: Expr) -> list[Stmt]:
            zero = each(lambda j, u, lane: Store(acc, (j, u, lane), self.const(0)))
            own = nest.serial(depth // parts, lambda i: step(expr.add(expr.mul(i, size), p)), "d")
            return zero + own + keep(p)

        stmts = nest.serial(parts, part, "p")
        if depth % parts == 0:
            return stmts
        done = expr.index(depth // parts * parts)
        stmts += each(lambda j, u, lane: Store(acc, (j, u, lane), load(sums, first, j, u, lane)))
        stmts += nest.serial(depth % parts, lambda d: step(expr.add(done, d)), "d")
        return stmts + keep(first)

    def _scaled_product(self, values: Values, key: Expr, product: Expr) -> Expr:
        """A product with a key, times the key's scale where that is not in its elements."""
        if self.partner is None:
            return product
        _, factor = self.split_key(values, key, expr.index(0))
        return product if factor is None else expr.mul(product, factor)

    def _online_softmax(self) -> list[Stmt]:
        """Statements that turn scores into softmax weights; earlier sums are scaled down later by
        `shrink`.
        """
        nest, best = self.nest, self.best
        total = self.scratch("sum", self.vectors, self.lanes, space=Space.REGISTER)

        def raise_largest(u: Expr, lane: Expr) -> list[Stmt]:
            nothing = Store(total, (u, lane), self.const(0))
            if self.is_one_tile:
                return [nothing]
            row = (self._row_of(u, lane),)
            drop = expr.sub(load(self.largest, *row), load(best, u, lane))
            return [
                Store(self.shrink, row, expr.unary("exp_nonpositive", drop)),
                Store(self.largest, row, load(best, u, lane)),
                nothing,
            ]

        parts = 1 if self.partner is None else self.partner.key_lanes
        partial = self.scratch("partial_total", parts, self.plan.rows) if parts > 1 else None

        def weigh(t: Expr) -> list[Stmt]:
            def one(u: Expr, lane: Expr) -> list[Stmt]:
                at = (t, self._row_of(u, lane))
                stmts: list[Stmt] = []
                drop = expr.sub(load(self.weights, *at), load(best, u, lane))
                weight = nest.let(expr.unary("exp_nonpositive", drop), stmts, "w")
                stmts.append(Store(self.weights, at, weight))
                return [*stmts, Store(total, (u, lane), expr.add(load(total, u, lane), weight))]

            return self._over_rows(one)

        def add_up(u: Expr, lane: Expr) -> list[Stmt]:
            row = (self._row_of(u, lane),)
            new: Expr = load(total, u, lane)
            if partial is not None:
                new = folded(partial, parts, *row)
            if self.is_one_tile:
                return [Store(self.total, row, self.share(new) if self.is_direct else new)]
            before, shrink = load(self.total, *row), load(self.shrink, *row)
            return [Store(self.total, row, Fma(before, shrink, new, self.wide))]

        stmts = self._over_rows(raise_largest)
        if partial is None:
            stmts += nest.serial(self.keys, weigh, "t")
        else:
            stmts += self._weigh_in_parts(weigh, total, partial, parts)
        return stmts + self._over_rows(add_up)

    def _weigh_in_parts(self, weigh: Body, total: Scratch, sums: Scratch, parts: int) -> list[Stmt]:
        """Statements that weigh all keys of a tile and add the weights up in `parts` sums: each of
        every so manieth key, and the first one of the tail's too."""
        nest, size = self.nest, expr.index(parts)
        whole, left = divmod(self.keys, parts)
        if left:
            raise InternalError(f"{self.keys} keys of a tile are no multiple of {parts}")

        def part(p: Expr) -> list[Stmt]:
            def keep(u: Expr, lane: Expr) -> list[Stmt]:
                return [
                    Store(sums, (p, self._row_of(u, lane)), load(total, u, lane)),
                    Store(total, (u, lane), self.const(0)),
                ]

            own = nest.serial(whole, lambda i: weigh(expr.add(expr.mul(i, size), p)), "t")
            return own + self._over_rows(keep)

        return nest.serial(parts, part, "p")

    # the mix of values

    def _accumulate_pv(self, values: Values, first: Expr, start: Expr) -> list[Stmt]:
        """Statements that add the tile's weighted values to each query's accumulator, in register
        tiles."""
        count = self.padded // self.lanes
        wide = min(VECTORS_OF_VALUES, count)

        def columns(c: Expr) -> list[Stmt]:
            return self._mix_columns(values, first, start, expr.mul(c, expr.index(wide)), wide)

        stmts = self.nest.serial(count // wide, columns, "c")
        if count % wide:
            last = expr.index(count - count % wide)
            stmts += self._mix_columns(values, first, start, last, count % wide)
        return stmts

    def _mix_columns(
        self, values: Values, first: Expr, start: Expr, vector: Expr, count: int
    ) -> list[Stmt]:
        """Statements that accumulate `count` vectors of the values' width, from vector number
        `vector`, for all queries."""
        nest = self.nest
        registers = max(nest.target.vector_registers, 2 * count + 1)
        fits = (n for n in (8, 4, 2, 1) if (n + 1) * count + 1 <= registers)
        rows = next(n for n in fits if self.plan.rows % n == 0)
        acc = self.scratch("mixed", rows, count, self.lanes, space=Space.REGISTER)

        def block(b: Expr) -> list[Stmt]:
            base = expr.mul(b, expr.index(rows))

            def take(r: Expr) -> list[Stmt]:
                return self._taken_mix(acc, r, expr.add(base, r), vector)

            def step(t: Expr) -> list[Stmt]:
                before: list[Stmt] = []
                factor: Expr | None = None
                if self._splits_values():
                    _, factor = self.split_value(values, expr.add(start, t), expr.index(0))
                if factor is not None:
                    factor = nest.let(factor, before, "f")

                def one_row(r: Expr) -> list[Stmt]:
                    stmts: list[Stmt] = []
                    found: Expr = load(self.weights, t, expr.add(base, r))
                    if factor is not None:
                        found = expr.mul(found, factor)
                    weight = nest.let(found, stmts, "w")

                    def add(u: Expr, lane: Expr, e: Expr) -> Stmt:
                        value = self._value_at(values, start, t, e)
                        old = load(acc, r, u, lane)
                        return Store(acc, (r, u, lane), Fma(weight, value, old, self.wide))

                    return stmts + self._by_vectors(vector, count, add)

                return before + nest.unrolled(rows, one_row, "r")

            def give(r: Expr) -> list[Stmt]:
                return self._given_mix(values, first, (acc, r, base), vector)

            stmts = nest.unrolled(rows, take, "r") + nest.serial(self.keys, step, "t")
            stmts += nest.unrolled(rows, give, "r")
            return self.has_row(expr.add(first, base), self.plan.rows, stmts)

        return nest.serial(self.plan.rows // rows, block, "b")

    def _by_vectors(
        self, vector: Expr, count: int, body: Callable[[Expr, Expr, Expr], Stmt]
    ) -> list[Stmt]:
        """`body(u, lane, e)` for the lanes of each of `count` vectors from number `vector`: `e` is
        the element of a value that the lane of vector `u` has."""
        size = expr.index(self.lanes)

        def one(u: Expr, lane: Expr) -> Stmt:
            return body(u, lane, expr.add(expr.mul(expr.add(vector, u), size), lane))

        return self.nest.unrolled(
            count, lambda u: [self.nest.spread(self.lanes, lambda lane: [one(u, lane)])]
        )

    def _taken_mix(self, acc: Scratch, r: Expr, row: Expr, vector: Expr) -> list[Stmt]:
        """Statements that load the sums of query `row` over earlier tiles into row `r` of `acc`."""
        count = acc.shape[1]
        if self.is_one_tile:
            return self._by_vectors(
                vector, count, lambda u, lane, e: Store(acc, (r, u, lane), self.const(0))
            )
        stmts: list[Stmt] = []
        shrink = self.nest.let(load(self.shrink, row), stmts, "s")

        def take(u: Expr, lane: Expr, e: Expr) -> Stmt:
            return Store(acc, (r, u, lane), expr.mul(load(self.mix, row, e), shrink))

        return stmts + self._by_vectors(vector, count, take)

    def _given_mix(
        self, values: Values, first: Expr, of: tuple[Scratch, Expr, Expr], vector: Expr
    ) -> list[Stmt]:
        """Statements that store a row of the accumulators.

        Args:
            of: the accumulators, the row in them, and the tile's query in their first row.
        """
        acc, r, base = of
        count = acc.shape[1]
        if not self.is_direct:
            return self._by_vectors(
                vector,
                count,
                lambda u, lane, e: Store(self.mix, (expr.add(base, r), e), load(acc, r, u, lane)),
            )
        row, share = expr.add(base, r), load(self.total, expr.add(base, r))
        place = expr.add(first, row)

        def give(u: Expr, lane: Expr, e: Expr) -> Stmt:
            return self.store(values, place, e, load(acc, r, u, lane), share)

        stored = self._by_vectors(vector, count, give)
        return self.has_row(place, self.plan.rows, stored)

    def _value_at(self, values: Values, start: Expr, t: Expr, e: Expr) -> Expr:
        if self.staged is not None:
            return load(self.staged, t, e)
        if self._splits_values():
            return self.split_value(values, expr.add(start, t), e)[0]
        return self.value_element(values, expr.add(start, t), e)

    def _end(self, values: Values, first: Expr) -> list[Stmt]:
        if self.is_direct:
            return []
        nest, rows = self.nest, self.plan.rows

        def one(r: Expr) -> list[Stmt]:
            row = expr.add(first, r)
            stmts: list[Stmt] = []
            share = nest.let(self.share(load(self.total, r)), stmts, "share")
            stmts += nest.vectors(
                self.width,
                lambda e: [self.store(values, row, e, load(self.mix, r, e), share)],
            )
            return self.has_row(row, rows, stmts)

        return nest.serial(rows, one, "r")
