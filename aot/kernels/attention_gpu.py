"""The kernel of attention on a GPU: some lanes a query, or a workgroup for a query.

Owns the loops of both. A workgroup of many queries stages tiles of keys and values; one of few
gives each lane a key, and then places of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.expr import Expr, Fma, Var
from aot.kernels.attention_elements import Elements, Values, load
from aot.kernels.attention_few import FEW
from aot.kernels.ir import Barrier, If, Scratch, Space, Stmt, Store
from aot.kernels.nest import Axis

Body = Callable[[Expr], Sequence[Stmt]]


class OnGpu(Elements):
    """A block of queries a workgroup, some lanes for each, which stages tiles of keys and values.

    A query's lanes share its keys out, and then the places of the values.
    """

    def tile_keys(self) -> int:
        return self.plan.columns

    def build(self) -> tuple[Stmt, ...]:
        nest, rows = self.nest, self.plan.rows
        self.multiple = nest.lanes  # both sizes of tiles divide it
        block = Axis(nest.builder.var("block"), dims.ceil_divide(self.queries, rows))
        rest = self._rest()
        few = _Few(self) if rest else None
        has_blocks = self.queries != rest
        if has_blocks:
            self._take_scratch()

        def one(values: dict[Var, Expr]) -> list[Stmt]:
            first = expr.mul(values[block.var], expr.index(rows))
            whole = self._block(values, first) if has_blocks else []
            if few is None:
                return whole
            alone = few.build(values, first, rest)
            if not has_blocks:
                return alone
            left = expr.sub(expr.index(self.queries), first)
            is_few = expr.binary("le", left, expr.index(rest))
            return [If(is_few, tuple(alone), tuple(whole))]

        return nest.grid([*self.axes, block], one, 1 << 30)

    def _rest(self) -> int:
        """How many queries at most are taken one by one: where a block has no more, or 0."""
        if not isinstance(self.queries, int):
            return FEW
        rest = self.queries % self.plan.rows
        return rest if rest <= FEW else 0

    def _take_scratch(self) -> None:
        rows, register = self.plan.rows, Space.REGISTER
        self.peers = self.nest.lanes // rows  # lanes of a query
        self.own_keys = -(-self.keys // self.peers)
        self.own_width = -(-self.width // self.peers)
        # one more, so that neighbouring keys lie in different banks
        self.staged_k = self.scratch("keys", self.keys, self.depth + 1)
        self.staged_v = self.scratch("values", self.keys, self.width)
        self.weights = self.scratch("weights", rows, self.keys)
        self.mix = self.scratch("mix", self.own_width, space=register)
        self.scores = self.scratch("scores", self.own_keys, space=register)
        self.largest, self.best, self.total = (
            self.scratch(name, space=register) for name in ("largest", "best", "total")
        )

    def _each(self, body: Callable[[Expr, Expr], Sequence[Stmt]]) -> list[Stmt]:
        """`body(r, p)` for the lanes: p counts those of the block's query r."""

        def one(lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            peers = expr.index(self.peers)
            r, p = (
                self.nest.let(expr.binary(op, lane, peers), stmts, name)
                for op, name in (("floordiv", "r"), ("floormod", "p"))
            )
            return [*stmts, *body(r, p)]

        return [self.nest.spread(self.nest.lanes, one)]

    def _block(self, values: Values, first: Expr) -> list[Stmt]:
        zero, nest = self.const(0), self.nest
        stmts = self._each(
            lambda r, p: [
                Store(self.largest, (), self.lowest),
                Store(self.total, (), zero),
                *nest.unrolled(self.own_width, lambda i: [Store(self.mix, (i,), zero)]),
            ]
        )
        tiles = dims.ceil_divide(self.all_keys, self.keys)
        stmts += nest.serial(tiles, lambda t: self._tile(values, first, t), "t")
        return stmts + self._each(lambda r, p: self._end(values, expr.add(first, r), p))

    def _tile(self, values: Values, first: Expr, tile: Expr) -> list[Stmt]:
        start = expr.mul(tile, expr.index(self.keys))
        stmts = self._stage(self.staged_k, self.depth, start, values, self.key_element)
        stmts += self._stage(self.staged_v, self.width, start, values, self.value_element)
        steps = (
            lambda r, p: self._score(values, expr.add(first, r), r, p, start),
            lambda r, p: self._compare(r),
            self._weigh,
            self._mix,
        )
        for step in steps:
            stmts += [Barrier(), *self._each(step)]
        stmts.append(Barrier())
        end = self.real_row(expr.add(first, expr.index(self.plan.rows - 1)), self.plan.rows)
        return self.reached(end, start, stmts)

    def _stage(
        self,
        target: Scratch,
        depth: int,
        start: Expr,
        values: Values,
        element: Callable[[Values, Expr, Expr], Expr],
    ) -> list[Stmt]:
        """Copies a tile, neighbours in memory by neighbouring lanes."""
        count, lanes = self.keys * depth, self.nest.lanes

        def one(o: Expr, lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            flat = self.nest.let(expr.add(expr.mul(o, expr.index(lanes)), lane), stmts, "n")
            t, d = (expr.binary(op, flat, expr.index(depth)) for op in ("floordiv", "floormod"))
            copy = Store(target, (t, d), element(values, expr.add(start, t), d))
            if count % lanes == 0:
                return [*stmts, copy]
            return [*stmts, If(expr.binary("lt", flat, expr.index(count)), (copy,))]

        return self.nest.serial(
            -(-count // lanes), lambda o: [self.nest.spread(lanes, lambda n: one(o, n))], "o"
        )

    def _own(self, count: int, p: Expr, body: Body) -> list[Stmt]:
        """`body(n)` for every `peers`-th of `count` from p on."""

        def one(i: Expr) -> list[Stmt]:
            n = expr.add(expr.mul(i, expr.index(self.peers)), p)
            if count % self.peers == 0:
                return list(body(n))
            return [If(expr.binary("lt", n, expr.index(count)), tuple(body(n)))]

        return self.nest.serial(-(-count // self.peers), one, "i")

    def _score(self, values: Values, at: Expr, r: Expr, p: Expr, start: Expr) -> list[Stmt]:
        """The scores of a lane's keys."""
        nest, scores = self.nest, self.scores
        stmts: list[Stmt] = []
        row = nest.let(self.real_row(at, self.plan.rows), stmts, "row")
        last = expr.index(self.keys - 1)

        def key_of(i: Expr) -> Expr:
            t = expr.add(expr.mul(i, expr.index(self.peers)), p)
            return t if self.keys % self.peers == 0 else expr.binary("min", t, last)

        def step(d: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            query = nest.let(self.scaled_query(values, row, d), inner, "q")

            def one(i: Expr) -> list[Stmt]:
                key = load(self.staged_k, key_of(i), d)
                return [Store(scores, (i,), Fma(query, key, load(scores, i), self.wide))]

            return inner + nest.unrolled(self.own_keys, one)

        def finish(i: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            t = nest.let(key_of(i), inner, "t")
            found = self.score(values, row, expr.add(start, t), load(scores, i))
            keep = Store(self.weights, (r, t), found)
            if self.keys % self.peers == 0:
                return [*inner, keep]
            place = expr.add(expr.mul(i, expr.index(self.peers)), p)
            return [*inner, If(expr.binary("lt", place, expr.index(self.keys)), (keep,))]

        zero = self.const(0)
        stmts += nest.unrolled(self.own_keys, lambda i: [Store(scores, (i,), zero)])
        stmts += nest.serial(self.depth, step, "d")
        return stmts + nest.unrolled(self.own_keys, finish)

    def _compare(self, r: Expr) -> list[Stmt]:
        def one(t: Expr) -> list[Stmt]:
            larger = self.larger(load(self.best), load(self.weights, r, t))
            return [Store(self.best, (), larger)]

        start = Store(self.best, (), load(self.largest))
        return [start, *self.nest.serial(self.keys, one, "t")]

    def _weigh(self, r: Expr, p: Expr) -> list[Stmt]:
        def one(t: Expr) -> list[Stmt]:
            fall = expr.sub(load(self.weights, r, t), load(self.best))
            return [Store(self.weights, (r, t), expr.unary("exp", fall))]

        return self._own(self.keys, p, one)

    def _mix(self, r: Expr, p: Expr) -> list[Stmt]:
        """A lane's places of the values, and the total, which is that of all lanes of a query."""
        nest, mix, total = self.nest, self.mix, self.total
        stmts: list[Stmt] = []
        drop = expr.sub(load(self.largest), load(self.best))
        shrink = nest.let(expr.unary("exp", drop), stmts, "shrink")
        last = expr.index(self.width - 1)

        def scale(i: Expr) -> list[Stmt]:
            return [Store(mix, (i,), expr.mul(load(mix, i), shrink))]

        def add(t: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            weight = nest.let(load(self.weights, r, t), inner, "w")
            inner.append(Store(total, (), expr.add(load(total), weight)))

            def one(i: Expr) -> list[Stmt]:
                e = expr.add(expr.mul(i, expr.index(self.peers)), p)
                if self.width % self.peers:
                    e = expr.binary("min", e, last)
                value = load(self.staged_v, t, e)
                return [Store(mix, (i,), Fma(weight, value, load(mix, i), self.wide))]

            return inner + nest.unrolled(self.own_width, one)

        stmts += [
            Store(self.largest, (), load(self.best)),
            Store(total, (), expr.mul(load(total), shrink)),
            *nest.unrolled(self.own_width, scale),
        ]
        return stmts + nest.serial(self.keys, add, "t")

    def _end(self, values: Values, row: Expr, p: Expr) -> list[Stmt]:
        stmts: list[Stmt] = []
        share = self.nest.let(self.share(load(self.total)), stmts, "share")

        def one(i: Expr) -> list[Stmt]:
            e = expr.add(expr.mul(i, expr.index(self.peers)), p)
            store = self.store(values, row, e, load(self.mix, i), share)
            if self.width % self.peers == 0:
                return [store]
            return [If(expr.binary("lt", e, expr.index(self.width)), (store,))]

        stmts += self.nest.unrolled(self.own_width, one)
        return self.has_row(row, self.plan.rows, stmts)


class _Few:
    """The loops of few queries: lanes along keys in scores, along the width in the mix."""

    def __init__(self, elements: Elements) -> None:
        self.elements, self.nest = elements, elements.nest
        self.lanes = self.nest.lanes
        self.columns = -(-elements.width // self.lanes)
        self.asked = elements.scratch("asked", elements.depth)
        self.peers = elements.scratch("peers", self.lanes)
        self.weights = elements.scratch("few_weights", self.lanes)
        self.mix = elements.scratch("few_mix", self.columns, space=Space.REGISTER)
        self.score, self.largest, self.total, self.shrink = (
            elements.scratch(name, space=Space.REGISTER)
            for name in ("score", "few_largest", "few_total", "shrink")
        )

    def build(self, values: Values, first: Expr, count: int) -> list[Stmt]:
        """`count` queries from `first` on, or as many of them as there are."""
        el = self.elements

        def one(r: Expr) -> list[Stmt]:
            row = expr.add(first, r)
            stmts = self._query(values, row)
            if isinstance(el.queries, int):
                return stmts
            return [If(expr.binary("lt", row, expr.index(el.queries)), tuple(stmts))]

        return self.nest.serial(count, one, "r")

    def _each(self, body: Body) -> list[Stmt]:
        return [self.nest.spread(self.lanes, body)]

    def _query(self, values: Values, row: Expr) -> list[Stmt]:
        el, nest, zero = self.elements, self.nest, self.elements.const(0)

        def ask(o: Expr, lane: Expr) -> list[Stmt]:
            d = expr.add(expr.mul(o, expr.index(self.lanes)), lane)
            copy = Store(self.asked, (d,), el.scaled_query(values, row, d))
            if el.depth % self.lanes == 0:
                return [copy]
            return [If(expr.binary("lt", d, expr.index(el.depth)), (copy,))]

        def start(lane: Expr) -> list[Stmt]:
            clear = nest.unrolled(self.columns, lambda c: [Store(self.mix, (c,), zero)])
            return [Store(self.largest, (), el.lowest), Store(self.total, (), zero), *clear]

        def end(lane: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            share = nest.let(el.share(load(self.total)), stmts, "share")

            def one(c: Expr) -> list[Stmt]:
                e = expr.add(expr.mul(c, expr.index(self.lanes)), lane)
                store = el.store(values, row, e, load(self.mix, c), share)
                if el.width % self.lanes == 0:
                    return [store]
                return [If(expr.binary("lt", e, expr.index(el.width)), (store,))]

            return stmts + nest.unrolled(self.columns, one)

        asks = -(-el.depth // self.lanes)
        stmts = nest.serial(asks, lambda o: self._each(lambda lane: ask(o, lane)), "o")
        stmts += [*self._each(start), Barrier()]
        tiles = dims.ceil_divide(el.all_keys, self.lanes)
        stmts += nest.serial(tiles, lambda t: self._tile(values, row, t), "t")
        # the next query is asked where this one was
        return [*stmts, *self._each(end), Barrier()]

    def _tile(self, values: Values, row: Expr, tile: Expr) -> list[Stmt]:
        start = expr.mul(tile, expr.index(self.lanes))
        stmts = self._each(lambda lane: self._ask(values, row, expr.add(start, lane), lane))
        stmts.append(Barrier())
        stmts += self._largest_of_peers()
        stmts += [*self._each(self._weigh), Barrier()]
        stmts += self._each(lambda lane: self._mix(values, start, lane))
        return self.elements.reached(row, start, stmts)

    def _ask(self, values: Values, row: Expr, key: Expr, lane: Expr) -> list[Stmt]:
        """A lane's key: its score."""
        el = self.elements

        def step(d: Expr) -> list[Stmt]:
            product = Fma(
                load(self.asked, d), el.key_element(values, key, d), load(self.score), el.wide
            )
            return [Store(self.score, (), product)]

        stmts: list[Stmt] = [Store(self.score, (), el.const(0))]
        stmts += self.nest.serial(el.depth, step, "d")
        score = self.nest.let(el.score(values, row, key, load(self.score)), stmts, "s")
        return [*stmts, Store(self.score, (), score), Store(self.peers, (lane,), score)]

    def _largest_of_peers(self) -> list[Stmt]:
        stmts: list[Stmt] = []
        half = self.lanes // 2
        while half >= 1:

            def one(lane: Expr, half: int = half) -> list[Stmt]:
                other = load(self.peers, expr.add(lane, expr.index(half)))
                larger = self.elements.larger(load(self.peers, lane), other)
                return [
                    If(
                        expr.binary("lt", lane, expr.index(half)),
                        (Store(self.peers, (lane,), larger),),
                    )
                ]

            stmts += [*self._each(one), Barrier()]
            half //= 2
        return stmts

    def _weigh(self, lane: Expr) -> list[Stmt]:
        stmts: list[Stmt] = []
        found = self.elements.larger(load(self.largest), load(self.peers, expr.index(0)))
        best = self.nest.let(found, stmts, "best")
        fall = expr.sub(load(self.score), best)
        drop = expr.sub(load(self.largest), best)
        return [
            *stmts,
            Store(self.weights, (lane,), expr.unary("exp", fall)),
            Store(self.shrink, (), expr.unary("exp", drop)),
            Store(self.largest, (), best),
        ]

    def _mix(self, values: Values, start: Expr, lane: Expr) -> list[Stmt]:
        """A lane's places of the values, and the total, which is every lane's."""
        el, nest = self.elements, self.nest
        last = expr.index(el.width - 1)
        shrink = load(self.shrink)

        def scale(c: Expr) -> list[Stmt]:
            return [Store(self.mix, (c,), expr.mul(load(self.mix, c), shrink))]

        def step(u: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            weight = nest.let(load(self.weights, u), stmts, "w")
            stmts.append(Store(self.total, (), expr.add(load(self.total), weight)))

            def one(c: Expr) -> list[Stmt]:
                e = expr.add(expr.mul(c, expr.index(self.lanes)), lane)
                if el.width % self.lanes:
                    e = expr.binary("min", e, last)
                value = el.value_element(values, expr.add(start, u), e)
                return [Store(self.mix, (c,), Fma(weight, value, load(self.mix, c), el.wide))]

            return stmts + nest.unrolled(self.columns, one)

        stmts: list[Stmt] = [Store(self.total, (), expr.mul(load(self.total), shrink))]
        stmts += nest.unrolled(self.columns, scale)
        return stmts + nest.serial(self.lanes, step, "u")
