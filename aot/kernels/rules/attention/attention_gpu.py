"""The attention kernel on a GPU: a workgroup takes a block of queries, with several lanes for each.

Owns its loops: a row of lanes computes scores of a tile of keys and mixes their values. Where a
block has fewer queries than rows, as in a decoder's next step, a query gets several rows, which
share its keys out and add up what they have found in the end.

The lanes of a row are apart and neighbouring lanes belong to different rows, so that those of a
block load the same key or value at once. Queries are in shared memory, keys and values are not:
where memory is read by few addresses at a time, a copy costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Fma, Var
from aot.kernels.ir.nodes import Barrier, If, Scratch, Space, Stmt, Store
from aot.kernels.nest.nest import Axis
from aot.kernels.rules.attention.attention_elements import Elements, Values, load

# places of a value that a lane mixes at once: more would make a shader too large
PLACES_AT_ONCE = 4


class OnGpu(Elements):
    """Attention loops on a GPU, over blocks of `plan.rows` queries and tiles of `plan.columns`
    keys.

    Attributes:
        peers: lanes of a row.
        splits: rows of each query: more than one where there are fewer queries than rows.
    """

    def tile_keys(self) -> int:
        return self.plan.columns

    def build(self) -> tuple[Stmt, ...]:
        nest, rows = self.nest, self.plan.rows
        self.peers = nest.lanes // rows
        low, _ = dims.bounds(self.queries, self.known)
        # of no queries nothing is computed, but the program finds out how much that is
        some = self.queries if low is not None and low > 0 else dims.maximum(self.queries, 1)
        has_many = low is not None and 2 * low > rows
        self.splits = 1 if has_many else dims.maximum(dims.floor_divide(rows, some), 1)
        self.is_whole = dims.modulo(dims.multiply(self.queries, self.splits), rows) == 0
        is_known = self.splits == 1 or (isinstance(self.splits, int) and self.is_whole)
        self.multiple = dims.multiply(self.keys, self.splits) if is_known else None
        self._take_scratch()
        block = Axis(nest.builder.var("block"), dims.ceil_divide(self.queries, rows))

        def one(values: dict[Var, Expr]) -> list[Stmt]:
            stmts: list[Stmt] = []
            first = nest.let(expr.mul(values[block.var], expr.index(rows)), stmts, "first")
            return stmts + self._block(values, first)

        return nest.grid([*self.axes, block], one, 1 << 30)

    def _there(self, key: Expr) -> Expr:
        """`key`, clamped to the last key; written with the comparison that scores use, so that code
        is shared.
        """
        if self._has_whole_tiles:
            return key
        is_there = expr.binary("lt", key, expr.index(self.all_keys))
        return expr.select(is_there, key, expr.index(dims.add(self.all_keys, -1)))

    def _take_scratch(self) -> None:
        rows, register = self.plan.rows, Space.REGISTER
        self.own_keys = self.keys // self.peers
        own_width = -(-self.width // self.peers)
        self.turns = -(-own_width // PLACES_AT_ONCE)
        self.places = -(-own_width // self.turns)
        self.padded = self.turns * self.places * self.peers
        # What a row has: the weights of a tile's keys and, for each lane, that of what was there
        # before; its query; the mix.
        self.at_query = self.keys + self.peers
        self.at_mix = self.at_query + self.depth
        pitch = self.at_mix + self.padded + -self.depth % self.peers
        # odd, so that a place of neighbouring rows is in different banks
        self.rows = self.scratch("rows", rows, pitch | 1)
        # of each lane: its largest score, and in the end the sum of its weights
        self.peaks = self.scratch("peaks", self.nest.lanes)
        self.mix = self.scratch("mix", self.places, space=register)
        self.scores = self.scratch("scores", self.own_keys, space=register)
        self.largest, self.best, self.total, self.sum = (
            self.scratch(name, space=register) for name in ("largest", "best", "total", "sum")
        )

    # lanes

    def _each(self, body: Callable[[Expr, Expr], Sequence[Stmt]]) -> list[Stmt]:
        """`body(r, p)` for all lanes: lane p of row r."""

        def one(lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            rows = expr.index(self.plan.rows)
            r, p = (
                self.nest.let(expr.binary(op, lane, rows), stmts, name)
                for op, name in (("floormod", "r"), ("floordiv", "p"))
            )
            return [*stmts, *body(r, p)]

        return [self.nest.spread(self.nest.lanes, one)]

    def _query_of(self, first: Expr, r: Expr, into: list[Stmt]) -> tuple[Expr, Expr]:
        """(query, split): the query in the block to which row `r` belongs, and the row's number
        among that query's rows.

        Rows that are too many do again what the last query asks, and are left out in the end.
        """
        splits = expr.index(self.splits)
        q = expr.binary("floordiv", r, splits)
        if not self.is_whole:
            last = expr.sub(expr.index(dims.add(self.queries, -1)), first)
            q = expr.binary("min", q, last)
        q = self.nest.let(q, into, "q")
        if self.splits == 1:
            return q, expr.index(0)
        return q, self.nest.let(expr.binary("floormod", r, splits), into, "split")

    def _place(self, i: Expr, p: Expr) -> Expr:
        """The index of lane `p`'s i-th key or value element: the lanes of a row take elements in
        turn."""
        return expr.add(expr.mul(i, expr.index(self.peers)), p)

    def _peaks_of(self, r: Expr) -> Expr:
        """The index of row `r`'s first lane in the scratch of maxima."""
        return expr.mul(r, expr.index(self.peers))

    # a block

    def _block(self, values: Values, first: Expr) -> list[Stmt]:
        stmts = [*self._each(lambda r, p: self._start(values, first, r, p)), Barrier()]
        stmts += self.nest.serial(self._tiles(), lambda t: self._tile(values, first, t), "t")
        return stmts + self._end(values, first)

    def _start(self, values: Values, first: Expr, r: Expr, p: Expr) -> list[Stmt]:
        """Statements that load a row's query and reset its maximum, sum and accumulator."""
        nest, zero = self.nest, self.const(0)
        stmts: list[Stmt] = [Store(self.largest, (), self.lowest), Store(self.total, (), zero)]
        before = self._place(expr.index(self.own_keys), p)
        stmts.append(Store(self.rows, (r, before), zero))
        q, _ = self._query_of(first, r, stmts)

        def one(i: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            at = nest.let(self._place(i, p), inner, "at")
            # beyond its depth is the mix
            query = self.padded_query(values, expr.add(first, q), at)
            return [*inner, Store(self.rows, (r, expr.add(expr.index(self.at_query), at)), query)]

        steps = -(-(self.depth + self.padded) // self.peers)
        return stmts + nest.serial(steps, one, "i")

    def _tiles(self) -> Dim:
        """The number of key tiles, over which a row's lanes step."""
        return dims.ceil_divide(self.all_keys, dims.multiply(self.splits, self.keys))

    def _tile(self, values: Values, first: Expr, number: Expr) -> list[Stmt]:
        """Statements that process the next tile of keys for each row."""
        outer: list[Stmt] = []
        size = expr.index(dims.multiply(self.splits, self.keys))
        tile = self.nest.let(expr.mul(number, size), outer, "tile")

        def step(
            body: Callable[[Values, Expr, Expr, Expr, Expr, Expr], Sequence[Stmt]],
        ) -> list[Stmt]:
            """`body(values, row, r, p, q, start)` for all lanes, where `start` is a lane's first
            key."""

            def one(r: Expr, p: Expr) -> list[Stmt]:
                stmts: list[Stmt] = []
                q, split = self._query_of(first, r, stmts)
                start = expr.add(tile, expr.mul(split, expr.index(self.keys)))
                start = self.nest.let(start, stmts, "start")
                return [*stmts, *body(values, expr.add(first, q), r, p, q, start)]

            return self._each(one)

        stmts = [*step(self._score), Barrier()]
        stmts += [*step(self._weigh), Barrier()]
        stmts += [*step(self._accumulate_pv), Barrier()]
        last_row = expr.add(first, expr.index(self.plan.rows - 1))
        return [*outer, *self.reached(last_row, tile, stmts)]

    def _score(
        self, values: Values, row: Expr, r: Expr, p: Expr, q: Expr, start: Expr
    ) -> list[Stmt]:
        """Statements that compute the scores of a lane's keys, and their maximum."""
        nest, scores, zero = self.nest, self.scores, self.const(0)

        def step(d: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            place = expr.add(expr.index(self.at_query), d)
            query = nest.let(load(self.rows, r, place), inner, "a")

            def one(i: Expr) -> list[Stmt]:
                key = self.key_element(values, expr.add(start, self._place(i, p)), d)
                return [Store(scores, (i,), Fma(query, key, load(scores, i), self.wide))]

            return inner + nest.unrolled(self.own_keys, one)

        def keep(i: Expr) -> list[Stmt]:
            return [Store(self.rows, (r, self._place(i, p)), load(scores, i))]

        def finish(i: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            t = nest.let(self._place(i, p), inner, "t")
            score: Expr = load(self.rows, r, t)
            if not self.has_plain_scores:
                score = nest.let(self.score(values, row, expr.add(start, t), score), inner, "score")
                inner.append(Store(self.rows, (r, t), score))
            return [*inner, Store(self.best, (), self.larger(load(self.best), score))]

        stmts = nest.unrolled(self.own_keys, lambda i: [Store(scores, (i,), zero)])
        stmts += nest.serial(self.depth, step, "d")
        stmts += nest.unrolled(self.own_keys, keep)
        stmts.append(Store(self.best, (), load(self.largest)))
        stmts += nest.serial(self.own_keys, finish, "i")
        return [*stmts, Store(self.peaks, (expr.add(self._peaks_of(r), p),), load(self.best))]

    def _weigh(
        self, values: Values, row: Expr, r: Expr, p: Expr, q: Expr, start: Expr
    ) -> list[Stmt]:
        """Statements that turn a lane's scores into softmax weights, and rescale the sums so far.

        All rows of a query take the largest score of any, so that their sums add up.
        """
        nest, stmts = self.nest, list[Stmt]()
        size = dims.multiply(self.splits, self.peers)
        begin = self._peaks_of(expr.mul(q, expr.index(self.splits)))
        begin = nest.let(begin, stmts, "peaks")

        def compare(n: Expr) -> list[Stmt]:
            larger = self.larger(load(self.best), load(self.peaks, expr.add(begin, n)))
            return [Store(self.best, (), larger)]

        def one(i: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            t = nest.let(self._place(i, p), inner, "t")
            is_key = expr.binary("lt", i, expr.index(self.own_keys))
            score = expr.select(is_key, load(self.rows, r, t), load(self.largest))
            fall = expr.sub(score, load(self.best))
            weight = nest.let(expr.unary("exp_nonpositive", fall), inner, "w")
            mass = expr.select(is_key, self.const(1), load(self.total))
            added = Fma(weight, mass, load(self.sum), self.wide)
            keep = Store(self.rows, (r, t), weight)
            return [*inner, keep, Store(self.sum, (), added)]

        stmts += nest.serial(size, compare, "n")
        stmts.append(Store(self.sum, (), self.const(0)))
        stmts += nest.serial(self.own_keys + 1, one, "i")
        stmts.append(Store(self.largest, (), load(self.best)))
        return [*stmts, Store(self.total, (), load(self.sum))]

    def _accumulate_pv(
        self, values: Values, row: Expr, r: Expr, p: Expr, q: Expr, start: Expr
    ) -> list[Stmt]:
        """Statements that add a tile's weighted values to a lane's elements of the accumulator."""
        nest, mix = self.nest, self.mix
        stmts: list[Stmt] = []
        before = self._place(expr.index(self.own_keys), p)
        shrink = nest.let(load(self.rows, r, before), stmts, "shrink")
        last = expr.index(self.width - 1)

        def turn(h: Expr) -> list[Stmt]:
            def place(i: Expr) -> Expr:
                return self._place(expr.add(expr.mul(i, expr.index(self.turns)), h), p)

            def add(t: Expr) -> list[Stmt]:
                inner: list[Stmt] = []
                weight = nest.let(load(self.rows, r, t), inner, "w")

                def one(i: Expr) -> list[Stmt]:
                    e = place(i)
                    if self.padded != self.width:
                        e = expr.binary("min", e, last)
                    value = self.value_element(values, expr.add(start, t), e)
                    return [Store(mix, (i,), Fma(weight, value, load(mix, i), self.wide))]

                return inner + nest.unrolled(self.places, one)

            def at(i: Expr) -> Expr:
                return expr.add(expr.index(self.at_mix), place(i))

            def take(i: Expr) -> list[Stmt]:
                return [Store(mix, (i,), expr.mul(load(self.rows, r, at(i)), shrink))]

            def give(i: Expr) -> list[Stmt]:
                return [Store(self.rows, (r, at(i)), load(mix, i))]

            inner = nest.unrolled(self.places, take)
            inner += nest.serial(self.keys, add, "t")
            return inner + nest.unrolled(self.places, give)

        return stmts + nest.serial(self.turns, turn, "h")

    # results

    def _end(self, values: Values, first: Expr) -> list[Stmt]:
        """Combines the partial results of each query's rows, and stores them, with lanes along the
        values' width."""
        nest, lanes = self.nest, self.nest.lanes
        count, width = self.plan.rows * self.width, expr.index(self.width)

        def give(r: Expr, p: Expr) -> list[Stmt]:
            return [Store(self.peaks, (expr.add(self._peaks_of(r), p),), load(self.total))]

        def take(o: Expr, lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            n = nest.let(expr.add(expr.mul(o, expr.index(lanes)), lane), stmts, "n")
            q = nest.let(expr.binary("floordiv", n, width), stmts, "q")
            row = nest.let(expr.add(first, q), stmts, "row")
            # not a modulo, which neighbours in memory would hide from the address
            e = expr.sub(n, expr.mul(q, width))
            inside = self._add_up(q, e)
            share = self.share(load(self.total))
            inside.append(self.store(values, row, e, load(self.sum), share))
            is_there = self._has_query(first, q, is_exact=count % lanes == 0)
            return [*stmts, *(inside if is_there is None else [If(is_there, tuple(inside))])]

        steps = -(-count // lanes)
        takes = nest.serial(steps, lambda o: [nest.spread(lanes, lambda n: take(o, n))], "o")
        return [*self._each(give), Barrier(), *takes]

    def _has_query(self, first: Expr, q: Expr, *, is_exact: bool) -> Expr | None:
        """The condition that query `q` of the block exists; None if it certainly does."""
        rows = self.plan.rows
        conditions: list[Expr] = []
        if not is_exact:
            conditions.append(expr.binary("lt", q, expr.index(rows)))
        if dims.modulo(self.queries, rows) != 0:
            last = expr.sub(expr.index(dims.add(self.queries, -1)), first)
            conditions.append(expr.binary("le", q, last))
        return expr.all_of(conditions)

    def _add_up(self, q: Expr, e: Expr) -> list[Stmt]:
        """Statements that sum over a query's rows: one element of the accumulator, and the weights
        of all lanes."""
        nest, stmts = self.nest, list[Stmt]()
        base = nest.let(expr.mul(q, expr.index(self.splits)), stmts, "base")

        def add(target: Scratch, value: Expr) -> list[Stmt]:
            return [Store(target, (), expr.add(load(target), value))]

        def mix(s: Expr) -> list[Stmt]:
            at = expr.add(expr.index(self.at_mix), e)
            return add(self.sum, load(self.rows, expr.add(base, s), at))

        def mass(n: Expr) -> list[Stmt]:
            return add(self.total, load(self.peaks, expr.add(self._peaks_of(base), n)))

        stmts += [Store(target, (), self.const(0)) for target in (self.sum, self.total)]
        stmts += nest.serial(self.splits, mix, "s")
        return stmts + nest.serial(dims.multiply(self.splits, self.peers), mass, "n")
