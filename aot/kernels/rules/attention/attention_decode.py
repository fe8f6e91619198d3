"""Attention of a few queries on a CPU, such as a decoder's next token: one query after the other.

Owns the loops of that case: lanes along depths in products, along keys in the softmax and along
the values' width in the mix, so that each key and value is read once and in whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from aot.analysis.cost.attention_tiles import FEW_QUERIES
from aot.ir import dims, expr
from aot.ir.expr import Expr, Fma, Load
from aot.kernels.ir.nodes import If, Scratch, Space, Stmt, Store
from aot.kernels.rules.attention.attention_elements import Elements, Values, load

# Up to so many queries lanes along queries would mostly idle.
FEW = FEW_QUERIES
# products side by side, to hide the multiply-add's latency
PRODUCTS_AT_ONCE = 4
# vectors of a depth whose products are written out
VECTORS_WRITTEN_OUT = 8
# vectors of the mix that stay in registers over a tile
VECTORS_AT_ONCE = 8
# such groups of vectors whose sums are written out; more are a loop
PARTS_WRITTEN_OUT = 4

Body = Callable[[Expr], Sequence[Stmt]]
Join = Callable[[Expr, Expr], Expr]


class DecodeAttention:
    """Attention loops for a few queries, with the tiles of keys that `elements` has."""

    def __init__(self, elements: Elements) -> None:
        self.elements, self.nest = elements, elements.nest
        self.keys, self.depth, self.width = elements.keys, elements.depth, elements.width
        self.is_abreast = not elements.has_whole_keys()
        if self.is_abreast and isinstance(elements.all_keys, int):
            self.keys = min(self.keys, elements.all_keys)
        self.asked = elements.scratch("asked", self.depth)
        self.weights = elements.scratch("few_weights", self.keys)
        self.mix = elements.scratch("few_mix", self.width)
        register = Space.REGISTER
        self.largest, self.total, self.best = (
            elements.scratch(name, space=register) for name in ("few_largest", "few_total", "best")
        )

    def build(self, values: Values, first: Expr, count: int, *, is_exact: bool) -> list[Stmt]:
        """Statements for `count` queries from `first`; with `is_exact` all of them exist, else each
        is checked."""

        def one(r: Expr) -> list[Stmt]:
            row = expr.add(first, r)
            stmts = self._query(values, row)
            if is_exact:
                return stmts
            return [If(expr.binary("lt", row, expr.index(self.elements.queries)), tuple(stmts))]

        return self.nest.serial(count, one, "r")

    def _query(self, values: Values, row: Expr) -> list[Stmt]:
        el, nest, zero = self.elements, self.nest, self.elements.const(0)
        stmts = nest.vectors(
            self.depth, lambda d: [Store(self.asked, (d,), el.scaled_query(values, row, d))]
        )
        stmts += nest.vectors(self.width, lambda e: [Store(self.mix, (e,), zero)])
        stmts += [Store(self.largest, (), el.lowest), Store(self.total, (), zero)]
        tiles = dims.ceil_divide(el.all_keys, self.keys)
        stmts += nest.serial(tiles, lambda t: self._tile(values, row, t), "t")
        share = nest.let(el.share(load(self.total)), stmts, "share")
        return stmts + nest.vectors(
            self.width, lambda e: [el.store(values, row, e, load(self.mix, e), share)]
        )

    def _tile(self, values: Values, row: Expr, tile: Expr) -> list[Stmt]:
        start = expr.mul(tile, expr.index(self.keys))
        stmts: list[Stmt] = []
        if not self.is_abreast:
            group = gcd(self.keys, PRODUCTS_AT_ONCE)
            stmts += self.nest.serial(
                self.keys // group,
                lambda g: self._products(values, start, expr.mul(g, expr.index(group)), group),
                "g",
            )
        else:
            stmts += self._products_abreast(values, start)
        stmts += self._scores(values, row, start)
        drop = expr.sub(load(self.largest), load(self.best))
        shrink = self.nest.let(expr.unary("exp_nonpositive", drop), stmts, "shrink")
        stmts += self._online_softmax(shrink)
        stmts += self._accumulate_pv(values, start, shrink)
        return self.elements.reached(row, start, stmts)

    def _lanes(self, extent: int) -> int:
        """The widest power-of-two vector with at most `extent` lanes."""
        lanes = self.nest.lanes
        while lanes > max(extent, 1):
            lanes //= 2
        return lanes

    def _fold(
        self,
        source: Scratch,
        lanes: int,
        *before: Expr,
        by: Join = expr.add,
    ) -> list[Stmt]:
        """Combines the lanes of `source` into its first lane, by addition or the function `by`."""
        stmts: list[Stmt] = []
        while lanes > 1:
            lanes //= 2
            half = expr.index(lanes)

            def one(lane: Expr, half: Expr = half) -> list[Stmt]:
                other = load(source, *before, expr.add(lane, half))
                return [Store(source, (*before, lane), by(load(source, *before, lane), other))]

            stmts.append(self.nest.spread(lanes, one))
        return stmts

    def _products(self, values: Values, start: Expr, at: Expr, count: int) -> list[Stmt]:
        """Statements that compute the query's dot products with `count` keys, from the tile's key
        `at`."""
        el, nest = self.elements, self.nest
        lanes = self.depth_lanes
        acc = el.scratch("products", count, lanes, space=Space.REGISTER)

        def each(body: Callable[[Expr, Expr], Sequence[Stmt]]) -> list[Stmt]:
            return nest.unrolled(count, lambda j: body(j, expr.add(at, j)), "j")

        def add(j: Expr, t: Expr, lane: Expr, d: Expr) -> list[Stmt]:
            key, _ = el.split_key(values, expr.add(start, t), d)
            return [
                Store(acc, (j, lane), Fma(load(self.asked, d), key, load(acc, j, lane), el.wide))
            ]

        def vectors(c: Expr) -> list[Stmt]:
            base = expr.mul(c, expr.index(lanes))
            return each(
                lambda j, t: [
                    nest.spread(lanes, lambda lane: add(j, t, lane, expr.add(base, lane)))
                ]
            )

        def finish(j: Expr, t: Expr) -> list[Stmt]:
            product: Expr = load(acc, j, expr.index(0))
            _, factor = el.split_key(values, expr.add(start, t), expr.index(0))
            if factor is not None:
                product = expr.mul(product, factor)
            return [*self._fold(acc, lanes, j), Store(self.weights, (t,), product)]

        zero = el.const(0)
        stmts = each(lambda j, t: [nest.spread(lanes, lambda lane: [Store(acc, (j, lane), zero)])])
        steps = self.depth // lanes
        loop = nest.unrolled if steps <= VECTORS_WRITTEN_OUT else nest.serial
        stmts += loop(steps, vectors, "c")
        done, first = expr.index(self.depth // lanes * lanes), expr.index(0)
        stmts += nest.serial(
            self.depth % lanes,
            lambda d: each(lambda j, t: add(j, t, first, expr.add(done, d))),
            "d",
        )
        return stmts + each(finish)

    def _products_abreast(self, values: Values, start: Expr) -> list[Stmt]:
        """Statements that compute the query's dot products with all keys of a tile, when the same
        element of neighbouring keys is contiguous: lanes run along keys.
        """
        el, nest = self.elements, self.nest
        lanes = self._lanes(self.keys)

        def some(first: Expr, count: int, lanes: int) -> list[Stmt]:
            """Dot products with `count` vectors of keys, from the tile's key `first`."""
            acc = el.scratch("abreast", count, lanes, space=Space.REGISTER)

            def over(body: Callable[[Load, Expr], Sequence[Stmt]]) -> list[Stmt]:
                def one(u: Expr, lane: Expr) -> Sequence[Stmt]:
                    place = expr.add(expr.mul(u, expr.index(lanes)), lane)
                    return body(load(acc, u, lane), expr.add(first, place))

                return nest.unrolled(count, lambda u: [nest.spread(lanes, lambda n: one(u, n))])

            def step(d: Expr) -> list[Stmt]:
                stmts: list[Stmt] = []
                asked = nest.let(load(self.asked, d), stmts, "a")

                def add(old: Load, t: Expr) -> list[Stmt]:
                    key, _ = el.split_key(values, expr.add(start, t), d, is_there=True)
                    return [Store(acc, old.indices, Fma(asked, key, old, el.wide))]

                return stmts + over(add)

            def finish(product: Load, t: Expr) -> list[Stmt]:
                key = expr.add(start, t)
                _, factor = el.split_key(values, key, expr.index(0), is_there=True)
                made = product if factor is None else expr.mul(product, factor)
                return [Store(self.weights, (t,), made)]

            stmts = over(lambda old, t: [Store(acc, old.indices, el.const(0))])
            return stmts + nest.serial(self.depth, step, "d") + over(finish)

        stmts: list[Stmt] = []
        vectors, rest = divmod(self.keys, lanes)
        whole, left = divmod(vectors, VECTORS_AT_ONCE)
        size = expr.index(VECTORS_AT_ONCE * lanes)
        stmts += nest.serial(whole, lambda n: some(expr.mul(n, size), VECTORS_AT_ONCE, lanes), "n")
        done = whole * VECTORS_AT_ONCE * lanes
        if left:
            stmts += some(expr.index(done), left, lanes)
        if rest:
            stmts += some(expr.index(done + left * lanes), rest, 1)
        return stmts

    @property
    def depth_lanes(self) -> int:
        """The vector width for depths."""
        return self._lanes(self.depth)

    @property
    def key_lanes(self) -> int:
        """The vector width for keys: one that divides the tile if that is half a vector at
        least."""
        lanes = gcd(self.keys, self.nest.lanes)
        return lanes if 2 * lanes >= self.nest.lanes else self._lanes(self.keys)

    def _over_keys(self, body: Callable[[Expr, Expr], Sequence[Stmt]]) -> list[Stmt]:
        """`body(lane, t)` for each key of a tile: in whole vectors, then for tail keys one by one
        as the first lane.
        """
        nest, lanes = self.nest, self.key_lanes
        size, first = expr.index(lanes), expr.index(0)
        whole, left = divmod(self.keys, lanes)

        def some(c: Expr) -> list[Stmt]:
            at = expr.mul(c, size)
            return [nest.spread(lanes, lambda lane: body(lane, expr.add(at, lane)))]

        done = expr.index(whole * lanes)
        stmts = nest.serial(whole, some, "c")
        return stmts + nest.serial(left, lambda n: body(first, expr.add(done, n)), "t")

    def _scores(self, values: Values, row: Expr, start: Expr) -> list[Stmt]:
        """Statements that turn products into scores. They also track the largest score so far."""
        el, nest = self.elements, self.nest
        best = el.scratch("few_best", self.key_lanes, space=Space.REGISTER)

        def one(lane: Expr, t: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            score: Expr = load(self.weights, t)
            if not el.has_plain_scores:
                found = el.score(values, row, expr.add(start, t), score)
                score = nest.let(found, stmts, "s")
                stmts.append(Store(self.weights, (t,), score))
            return [*stmts, Store(best, (lane,), el.larger(load(best, lane), score))]

        lanes = self.key_lanes
        stmts = [nest.spread(lanes, lambda n: [Store(best, (n,), load(self.largest))])]
        stmts += self._over_keys(one)
        stmts += self._fold(best, lanes, by=el.larger)
        return [*stmts, Store(self.best, (), load(best, expr.index(0)))]

    def _online_softmax(self, shrink: Expr) -> list[Stmt]:
        """Statements that turn scores into weights, and add these to their total."""
        el, nest = self.elements, self.nest
        lanes = self.key_lanes
        sums = el.scratch("few_sum", lanes, space=Space.REGISTER)

        def one(lane: Expr, t: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            fall = expr.sub(load(self.weights, t), load(self.best))
            weight = nest.let(expr.unary("exp_nonpositive", fall), stmts, "w")
            total = expr.add(load(sums, lane), weight)
            return [*stmts, Store(self.weights, (t,), weight), Store(sums, (lane,), total)]

        stmts: list[Stmt] = [nest.spread(lanes, lambda n: [Store(sums, (n,), el.const(0))])]
        stmts += self._over_keys(one)
        stmts += self._fold(sums, lanes)
        total = Fma(load(self.total), shrink, load(sums, expr.index(0)), el.wide)
        return [
            *stmts,
            Store(self.total, (), total),
            Store(self.largest, (), load(self.best)),
        ]

    def _accumulate_pv(self, values: Values, start: Expr, shrink: Expr) -> list[Stmt]:
        """Statements that add the tile's weighted values to the accumulator."""
        lanes = self._lanes(self.width)
        vectors, rest = divmod(self.width, lanes)
        parts, left = divmod(vectors, VECTORS_AT_ONCE)

        def part(first: Expr, count: int, lanes: int) -> list[Stmt]:
            return self._mix_part(values, start, shrink, first, count, lanes)

        loop = self.nest.unrolled if parts <= PARTS_WRITTEN_OUT else self.nest.serial
        size = expr.index(VECTORS_AT_ONCE * lanes)
        stmts: list[Stmt] = []
        if parts:
            stmts += loop(parts, lambda p: part(expr.mul(p, size), VECTORS_AT_ONCE, lanes), "p")
        if left:
            stmts += part(expr.index((vectors - left) * lanes), left, lanes)
        if rest:
            stmts += part(expr.index(vectors * lanes), rest, 1)
        return stmts

    def _mix_part(
        self, values: Values, start: Expr, shrink: Expr, first: Expr, count: int, lanes: int
    ) -> list[Stmt]:
        """Statements that accumulate `count` vectors of `lanes` value elements each, from element
        `first`."""
        el, nest = self.elements, self.nest
        acc = el.scratch("few_mixed", count, lanes, space=Space.REGISTER)

        def over(body: Callable[[Load, Expr], Stmt]) -> list[Stmt]:
            def one(u: Expr, lane: Expr) -> list[Stmt]:
                place = expr.add(expr.mul(u, expr.index(lanes)), lane)
                return [body(load(acc, u, lane), expr.add(place, first))]

            return nest.unrolled(count, lambda u: [nest.spread(lanes, lambda n: one(u, n))])

        def step(t: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            weight: Expr = load(self.weights, t)
            _, factor = el.split_value(values, expr.add(start, t), expr.index(0))
            if factor is not None:
                weight = expr.mul(weight, factor)
            weight = nest.let(weight, stmts, "w")

            def add(old: Load, e: Expr) -> Stmt:
                value, _ = el.split_value(values, expr.add(start, t), e)
                return Store(acc, old.indices, Fma(weight, value, old, el.wide))

            return stmts + over(add)

        stmts = over(lambda old, e: Store(acc, old.indices, expr.mul(load(self.mix, e), shrink)))
        stmts += nest.serial(self.keys, step, "t")
        return stmts + over(lambda new, e: Store(self.mix, (e,), new))
