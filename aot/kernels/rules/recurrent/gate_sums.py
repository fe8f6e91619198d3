"""The sums of a recurrent layer's gates: biases and products with panels of weights.

A CPU keeps them in registers, several panels at once; a GPU computes a gate in each invocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.ir import expr
from aot.ir.expr import Binary, Expr, Fma, Load, Var
from aot.ir.graph import Value
from aot.kernels.ir.nodes import If, Scratch, Stmt, Store
from aot.kernels.nest.inline import flat_index, stored
from aot.kernels.rules.recurrent.layer_state import PANELS_AT_ONCE, LayerState
from aot.kernels.rules.recurrent.recurrence_parts import Add, At, Term
from aot.ops.recurrent import B


class GateSums(LayerState):
    """The loops of a layer that compute its gates' sums."""

    def _begin(self, at: At, gate: Expr, offsets: Sequence[int]) -> Expr:
        """The initial value of a gate's sum: its biases, plus the input's product if x already
        contains that.
        """
        total = self._bias(at.d, gate, offsets)
        if self.w is not None or 0 not in offsets:
            return total
        source = stored(self.x)
        place = expr.add(expr.mul(at.d, expr.index(self.rows)), gate)
        given = self._padded(source, flat_index(source.type, (at.t, at.b, place)), gate)
        return given if self.operands[B] is None else expr.add(total, given)

    def _bias(self, d: Expr, gate: Expr, offsets: Sequence[int]) -> Expr:
        """The sum of a gate's biases, read from b at `offsets`; 0 for padding gates."""
        b = self.operands[B]
        total = self._number(0)
        if b is None:
            return total
        source = stored(b)
        for number, offset in enumerate(offsets):
            where = flat_index(source.type, (d, expr.add(gate, expr.index(offset))))
            one = self._padded(source, where, gate)
            total = one if number == 0 else expr.add(total, one)
        return total

    def _padded(self, source: Value, where: Expr, gate: Expr) -> Expr:
        """The load of a gate's element; 0 for padding gates of the last panel."""
        dtype = source.type.dtype
        loaded = Load(self.buffers[source], (where,), dtype)
        if self.rows % self.panel:
            inside = expr.binary("lt", gate, expr.index(self.rows))
            loaded = replace(loaded, guard=inside, other=expr.const(0, dtype))
        return expr.cast(loaded, self.wide)

    def _weight(self, value: Value, d: Expr, panel: Expr, lane: Expr, k: Expr) -> Expr:
        """The weight of gate `panel * P + lane` for input k."""
        gate, source = Var("gate"), stored(value)
        where = flat_index(source.type, (d, gate, k))
        whole = expr.add(expr.mul(panel, expr.index(self.panel)), lane)

        def rewrite(e: Expr) -> Expr | None:
            if isinstance(e, Binary) and e.a is gate and expr.dim_of(e.b) == self.panel:
                return {"floordiv": panel, "floormod": lane}.get(e.op)
            return whole if e is gate else None

        address = expr.transform(where, rewrite)
        if source.type.layout is None:
            return self._padded(source, address, whole)
        return expr.cast(Load(self.buffers[source], (address,), source.type.dtype), self.wide)

    def _store_bias(self, acc: Scratch, offsets: Sequence[int]) -> Add:
        size = expr.index(self.panel)

        def one(row: Expr, panel: Expr, lane: Expr, at: At) -> Stmt:
            gate = expr.add(expr.mul(panel, size), lane)
            return Store(acc, (row, lane), self._begin(at, gate, offsets))

        return one

    def _add_term(self, acc: Scratch, term: Term, k: Expr) -> Add:
        def one(row: Expr, panel: Expr, lane: Expr, at: At) -> Stmt:
            weight = self._weight(term.weight, at.d, panel, lane, k)
            old = Load(acc, (row, lane), self.wide)
            return Store(acc, (row, lane), Fma(term.scalar(k, at), weight, old, self.wide))

        return one

    def _sums(
        self,
        target: Scratch,
        terms: Sequence[Term],
        offsets: Sequence[int],
        panels: tuple[int, int],
        at: At,
    ) -> list[Stmt]:
        """Statements that store biases plus `terms` of the gates in panels [first, last) to
        `target`."""
        if self.nest.is_gpu:
            return self._sums_gpu(target, terms, offsets, panels, at)
        first, last = panels
        group = min(PANELS_AT_ONCE, last - first)
        full = (last - first) // group
        stmts = self._groups(target, terms, offsets, at, first, full, group)
        rest = last - first - full * group
        if rest:
            stmts += self._groups(target, terms, offsets, at, first + full * group, 1, rest)
        return stmts

    def _groups(
        self,
        target: Scratch,
        terms: Sequence[Term],
        offsets: Sequence[int],
        at: At,
        first: int,
        count: int,
        group: int,
    ) -> list[Stmt]:
        """Statements for `count` groups of `group` panels, whose accumulators stay in registers."""
        nest, size = self.nest, expr.index(self.panel)
        slots = self.slots
        acc = nest.builder.scratch("acc", self.wide, (group * slots, self.panel))

        def one(g: Expr) -> list[Stmt]:
            start = expr.add(expr.mul(g, expr.index(group)), expr.index(first))

            def lanes(body: Add) -> list[Stmt]:
                def one(u: Expr, slot: Expr) -> list[Stmt]:
                    row, panel = expr.add(expr.mul(u, expr.index(slots)), slot), expr.add(start, u)
                    where = self._in_slot(at, slot)
                    return [nest.spread(self.panel, lambda lane: [body(row, panel, lane, where)])]

                return nest.unrolled(group, lambda u: nest.unrolled(slots, lambda s: one(u, s)))

            stmts = lanes(self._store_bias(acc, offsets))
            for term in terms:
                stmts += nest.serial(
                    term.extent,
                    lambda k, t=term: lanes(self._add_term(acc, t, k)),  # type: ignore[misc]
                    "k",
                )
            return stmts + lanes(
                lambda row, panel, lane, at: Store(
                    target,
                    (at.slot, expr.add(expr.mul(panel, size), lane)),
                    Load(acc, (row, lane), self.wide),
                )
            )

        return nest.serial(count, one, "g")

    def _sums_gpu(
        self,
        target: Scratch,
        terms: Sequence[Term],
        offsets: Sequence[int],
        panels: tuple[int, int],
        at: At,
    ) -> list[Stmt]:
        """Statements that compute the sums on a GPU, one gate per invocation."""
        nest, size = self.nest, expr.index(self.panel)
        start, end = (n * self.panel for n in panels)
        acc = nest.builder.scratch("acc", self.wide, (nest.lanes,))

        def one(o: Expr, lane: Expr) -> list[Stmt]:
            gate = expr.add(expr.add(expr.mul(o, expr.index(nest.lanes)), expr.index(start)), lane)
            panel = expr.binary("floordiv", gate, size)
            inner = expr.binary("floormod", gate, size)

            def add(term: Term, k: Expr) -> list[Stmt]:
                return [
                    Store(
                        acc,
                        (lane,),
                        Fma(
                            term.scalar(k, at),
                            self._weight(term.weight, at.d, panel, inner, k),
                            Load(acc, (lane,), self.wide),
                            self.wide,
                        ),
                    )
                ]

            stmts: list[Stmt] = [Store(acc, (lane,), self._begin(at, gate, offsets))]
            for term in terms:
                stmts += nest.serial(term.extent, lambda k, term=term: add(term, k), "k")  # type: ignore[misc]
            stmts.append(Store(target, (at.slot, gate), Load(acc, (lane,), self.wide)))
            if (end - start) % nest.lanes == 0:
                return stmts
            return [If(expr.binary("lt", gate, expr.index(end)), tuple(stmts))]

        return nest.serial(
            -(-(end - start) // nest.lanes),
            lambda o: [nest.spread(nest.lanes, lambda lane: one(o, lane))],
            "o",
        )
