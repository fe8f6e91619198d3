"""The kernel of attention on a GPU: a query an invocation, or a workgroup for a query.

Owns the loops of both. A workgroup of many queries stages tiles of keys and values; one of few
gives each lane a key, and then places of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aot.ir import dims, expr
from aot.ir.expr import Expr, Fma, Var
from aot.kernels.attention_elements import Elements, Values, load
from aot.kernels.ir import Barrier, If, Scratch, Space, Stmt, Store
from aot.kernels.nest import Axis

# Up to so many queries a workgroup takes them one by one.
FEW = 16

Body = Callable[[Expr], Sequence[Stmt]]


class OnGpu(Elements):
    """A query an invocation, its mix in registers; a workgroup stages tiles of keys and values."""

    def tile_keys(self) -> int:
        return self.plan.columns

    def build(self) -> tuple[Stmt, ...]:
        nest, lanes = self.nest, self.nest.lanes
        self.multiple = lanes  # both sizes of tiles divide it
        block = Axis(nest.builder.var("block"), dims.ceil_divide(self.queries, lanes))
        rest = self._rest()
        few = _Few(self) if rest else None
        has_blocks = self.queries != rest
        if has_blocks:
            self._take_scratch()

        def one(values: dict[Var, Expr]) -> list[Stmt]:
            first = expr.mul(values[block.var], expr.index(lanes))
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
        rest = self.queries % self.nest.lanes
        return rest if rest <= FEW else 0

    def _take_scratch(self) -> None:
        self.staged_k = self.scratch("keys", self.keys, self.depth)
        self.staged_v = self.scratch("values", self.keys, self.width)
        self.weights = self.scratch("weights", self.keys, self.nest.lanes)
        register = Space.REGISTER
        self.mix = self.scratch("mix", self.width, space=register)
        self.scores = self.scratch("scores", self.keys, space=register)
        self.largest = self.scratch("largest", space=register)
        self.total = self.scratch("total", space=register)

    def _block(self, values: Values, first: Expr) -> list[Stmt]:
        stmts = self._each(lambda lane: self._start())
        stmts += self.nest.serial(
            dims.ceil_divide(self.all_keys, self.keys),
            lambda t: self._tile(values, first, t),
            "t",
        )
        return stmts + self._each(lambda lane: self._end(values, expr.add(first, lane)))

    def _each(self, body: Body) -> list[Stmt]:
        return [self.nest.spread(self.nest.lanes, body)]

    def _start(self) -> list[Stmt]:
        zero = self.const(0)
        return [
            Store(self.largest, (), self.lowest),
            Store(self.total, (), zero),
            *self.nest.unrolled(self.width, lambda e: [Store(self.mix, (e,), zero)], "e"),
        ]

    def _tile(self, values: Values, first: Expr, tile: Expr) -> list[Stmt]:
        start = expr.mul(tile, expr.index(self.keys))
        stmts = self._stage(self.staged_k, self.depth, start, values, self.key_element)
        stmts += self._stage(self.staged_v, self.width, start, values, self.value_element)
        stmts.append(Barrier())
        stmts += self._each(lambda lane: self._update(values, expr.add(first, lane), lane, start))
        stmts.append(Barrier())
        end = self.real_row(expr.add(first, expr.index(self.nest.lanes - 1)), self.nest.lanes)
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
            -(-count // lanes), lambda o: self._each(lambda lane: one(o, lane)), "o"
        )

    def _update(self, values: Values, at: Expr, lane: Expr, start: Expr) -> list[Stmt]:
        nest, scores = self.nest, self.scores
        stmts: list[Stmt] = []
        row = nest.let(self.real_row(at, nest.lanes), stmts, "row")
        tile = [expr.index(t) for t in range(self.keys)]
        stmts += [Store(scores, (t,), self.const(0)) for t in tile]

        def step(d: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            query = nest.let(self.scaled_query(values, row, d), inner, "q")
            for t in tile:
                product = Fma(query, load(self.staged_k, t, d), load(scores, t), self.wide)
                inner.append(Store(scores, (t,), product))
            return inner

        stmts += nest.serial(self.depth, step, "d")
        best: Expr = load(self.largest)
        for t in tile:
            found = self.score(values, row, expr.add(start, t), load(scores, t))
            score = nest.let(found, stmts, "s")
            stmts.append(Store(scores, (t,), score))
            best = nest.let(self.larger(best, score), stmts, "best")
        drop = expr.sub(load(self.largest), best)
        shrink = nest.let(expr.unary("exp", drop), stmts, "shrink")
        total: Expr = expr.mul(load(self.total), shrink)
        for t in tile:
            fall = expr.sub(load(scores, t), best)
            weight = nest.let(expr.unary("exp", fall), stmts, "w")
            stmts.append(Store(self.weights, (t, lane), weight))
            total = expr.add(total, weight)
        stmts += [Store(self.total, (), total), Store(self.largest, (), best)]
        return stmts + self._mix(lane, shrink)

    def _mix(self, lane: Expr, shrink: Expr) -> list[Stmt]:
        nest, mix = self.nest, self.mix
        stmts = nest.unrolled(
            self.width, lambda e: [Store(mix, (e,), expr.mul(load(mix, e), shrink))], "e"
        )

        def add(t: Expr) -> list[Stmt]:
            inner: list[Stmt] = []
            weight = nest.let(load(self.weights, t, lane), inner, "w")

            def one(e: Expr) -> list[Stmt]:
                value = load(self.staged_v, t, e)
                return [Store(mix, (e,), Fma(weight, value, load(mix, e), self.wide))]

            return inner + nest.unrolled(self.width, one, "e")

        return stmts + nest.serial(self.keys, add, "t")

    def _end(self, values: Values, row: Expr) -> list[Stmt]:
        def one(e: Expr) -> list[Stmt]:
            return [self.store(values, row, e, load(self.mix, e), load(self.total))]

        body = self.nest.unrolled(self.width, one, "e")
        return self.has_row(row, self.nest.lanes, body)


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
            def one(c: Expr) -> list[Stmt]:
                e = expr.add(expr.mul(c, expr.index(self.lanes)), lane)
                store = el.store(values, row, e, load(self.mix, c), load(self.total))
                if el.width % self.lanes == 0:
                    return [store]
                return [If(expr.binary("lt", e, expr.index(el.width)), (store,))]

            return nest.unrolled(self.columns, one)

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
