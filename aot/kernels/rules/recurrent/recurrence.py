"""The kernel of recurrent layers (RNN, GRU, LSTM): one workgroup runs all steps of a sequence, with
lanes along the gates.

Gates of panel-packed weights are read as the panels lie, so that a step runs at memory speed. What
a step computes of the gates is the cell's, in aot/ops/cells.py; here are the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load, Var
from aot.kernels.ir.nodes import Stmt, Store
from aot.kernels.match.work import Loops
from aot.kernels.nest.inline import flat_index, stored
from aot.kernels.nest.nest import Axis
from aot.kernels.nest.tiles import ReusedScratch
from aot.kernels.nest.two_ways import up_to
from aot.kernels.rules.recurrent.gate_sums import GateSums
from aot.kernels.rules.recurrent.recurrence_parts import Add, At, Rows, Term
from aot.kernels.rules.rule import OpWork
from aot.ops.cells import Unit
from aot.ops.recurrent import INITIAL_H, LENGTHS, PEEPHOLES


def schedule_recurrence(work: OpWork) -> Loops:
    """The loops of a recurrent layer, with the operands of the op's record. Its results are y [T,
    D, B, H] and the last states [D, B, H], each if it is read.
    """
    scratch = ReusedScratch(work.nest)
    layer = _Layer(work, scratch)
    loops = layer.build()
    for count in layer.fewer_slots():
        few = _Layer(work, scratch, count).build()
        loops = up_to(work.nest.builder, layer.x.type.dims[1], count, few, loops)
    return loops


class _Layer(GateSums):
    """The loops of a layer over its steps and units."""

    def build(self) -> tuple[Stmt, ...]:
        steps, batch = self.x.type.dims[0], self.x.type.dims[1]
        d = Axis(self.nest.builder.var("d"), self.r.type.dims[0])
        b = Axis(self.nest.builder.var("b"), dims.ceil_divide(batch, self.slots))

        def one(values: dict[Var, Expr]) -> list[Stmt]:
            at_d, at_b = values[d.var], expr.mul(values[b.var], expr.index(self.slots))
            stmts = self._start(at_d, at_b)
            length = self._length(at_b, stmts)
            stmts += self._sync()
            stmts += self.nest.serial(steps, lambda t: self._step(t, length, at_d, at_b), "t")
            stmts += self._end(at_d, at_b)
            return stmts

        # each (d, b) keeps its own states in scratch: it is a workgroup whatever its size
        return self.nest.grid([d, b], one, 1 << 30)

    def _length(self, b: Expr, into: list[Stmt]) -> Expr | None:
        """The number of steps of sequence b, clamped to the valid range; None if all sequences have
        all steps."""
        value = self.operands[LENGTHS]
        if value is None:
            return None
        source = stored(value)
        given = expr.cast(
            Load(self.buffers[source], (flat_index(source.type, (b,)),), source.type.dtype),
            expr.index(0).dtype,
        )
        steps = expr.index(self.x.type.dims[0])
        low = expr.binary("max", given, expr.index(0))
        return self.nest.let(expr.binary("min", low, steps), into, "length")

    def _place(self, t: Expr, length: Expr | None, d: Expr, b: Expr, into: list[Stmt]) -> At:
        """The position of step t of direction d: which step of the input it reads."""
        direction = self.op.attrs["direction"]
        count = expr.index(self.x.type.dims[0]) if length is None else length
        is_there = (
            None
            if length is None
            else self.nest.let(expr.binary("lt", t, length), into, "is_there")
        )
        # counted from the sequence's end; behind it, steps stay where they are
        backward = expr.sub(expr.sub(count, expr.index(1)), t)
        if is_there is not None:
            backward = expr.select(is_there, backward, t)
        at = t
        if direction == "reverse":
            at = backward
        elif direction == "bidirectional":
            at = expr.select(expr.binary("eq", d, expr.index(0)), t, backward)
        return At(d, b, self.nest.let(at, into, "at"), is_there, expr.index(0))

    def _step(self, t: Expr, length: Expr | None, d: Expr, b: Expr) -> list[Stmt]:
        stmts: list[Stmt] = []
        at = self._place(t, length, d, b, stmts)
        whole = (0, self.panels)
        into = []
        if self.w is not None:
            extent = self.x.type.dims[2]
            into = [Term(self.w, extent, lambda k, at: self._load(self.x, (at.t, at.b, k)))]
        around = self._over_state(lambda k, at: self._before(0, at, k))
        if self.sums is None:
            return stmts + self._fused(into, around, at)
        if self.around is None:
            stmts += self._sums(self.sums, [*into, around], (0, self.rows), whole, at)
        else:
            early = self.panels
            if self.cell.late_state is not None:
                early = -(-self.cell.late_gate * self.hidden // self.panel)
            stmts += self._sums(self.sums, into, (0,), whole, at)
            stmts += self._sums(self.around, [around], (self.rows,), (0, early), at)
        stmts += self._sync()
        if self.late is not None and self.late_sums is not None:
            stmts += self._late(at)
        stmts += self._each_slot(at, lambda at: self._over_hidden(lambda j: self._unit(j, at)))
        return stmts + self._sync()

    def _over_state(self, state: Callable[[Expr, At], Expr]) -> Term:
        """The part of the gates' sums that multiplies a state, summed over units."""
        if self.r_scale == 1:
            return Term(self.r, self.hidden, state)
        scale = self._number(self.r_scale)
        return Term(self.r, self.hidden, lambda k, at: expr.mul(state(k, at), scale))

    def _fused(self, into: Sequence[Term], around: Term, at: At) -> list[Stmt]:
        """Statements of a step in which the gates' sums stay in registers."""
        nest, size, gates = self.nest, self.panel, self.cell.gates
        count = self.hidden // size
        is_around_zero = self.is_single and self.operands[INITIAL_H] is None
        over_state = [] if is_around_zero else [around]
        # rows of sums: one a gate, or two where the cell asks for them apart
        terms = [[*into], over_state] if self.cell.is_split else [[*into, *over_state]]
        offsets = [[0], [self.rows]] if self.cell.is_split else [[0, self.rows]]
        each = gates * len(terms)
        group = self._units_at_once(each)
        acc = nest.builder.scratch("acc", self.wide, (self.slots * group * each, size))

        def one(o: Expr) -> list[Stmt]:
            first = expr.mul(o, expr.index(group))

            def lanes(kind: int, body: Add) -> list[Stmt]:
                """`body(row of acc, panel, lane, where)` for all gates of a kind and each
                sequence."""
                stmts: list[Stmt] = []
                for unit, gate, slot in product(range(group), range(gates), range(self.slots)):
                    row = expr.index((slot * group + unit) * each + kind * gates + gate)
                    panel = expr.add(first, expr.index(gate * count + unit))
                    where = self._in_slot(at, expr.index(slot))
                    stmts.append(
                        nest.spread(
                            size,
                            lambda lane, r=row, p=panel, w=where: [body(r, p, lane, w)],  # type: ignore[misc]
                        )
                    )
                return stmts

            stmts: list[Stmt] = []
            for kind, added in enumerate(terms):
                stmts += lanes(kind, self._store_bias(acc, offsets[kind]))
                for term in added:
                    stmts += nest.serial(
                        term.extent,
                        lambda k, t=term, n=kind: lanes(n, self._add_term(acc, t, k)),  # type: ignore[misc]
                        "k",
                    )
            for slot, unit in product(range(self.slots), range(group)):
                start = expr.mul(expr.add(first, expr.index(unit)), expr.index(size))
                apart = gates if self.cell.is_split else 0
                rows = Rows(acc, (slot * group + unit) * each, apart)
                where = self._in_slot(at, expr.index(slot))
                stmts.append(
                    nest.spread(
                        size,
                        lambda lane, s=start, r=rows, w=where: self._unit(  # type: ignore[misc]
                            expr.add(s, lane), w, replace(r, lane=lane)
                        ),
                    )
                )
            return stmts

        return nest.serial(count // group, one, "g") + self._pass_on(at)

    def _pass_on(self, at: At) -> list[Stmt]:
        """Statements that make the states behind a fused step those of the next one."""
        if self.following is None:
            return []
        state, following = self.states[0], self.following

        def one(at: At, j: Expr) -> list[Stmt]:
            return [Store(state, (at.slot, j), Load(following, (at.slot, j), self.wide))]

        return self._each_slot(at, lambda at: self._over_hidden(lambda j: one(at, j)))

    def _late(self, at: At) -> list[Stmt]:
        """Statements that compute the recurrent sums of the late gate, which reads the state after
        other gates have changed it.
        """
        late = self.late
        assert late is not None and self.late_sums is not None
        first, last = (n * self.hidden for n in (self.cell.late_gate, self.cell.late_gate + 1))
        panels = (first // self.panel, -(-last // self.panel))

        def one(at: At, j: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            assert self.cell.late_state is not None
            value = self.cell.late_state(self._terms(j, at, stmts, is_late=False))
            return [*stmts, Store(late, (at.slot, j), value)]

        stmts = self._each_slot(at, lambda at: self._over_hidden(lambda j: one(at, j)))
        stmts += self._sync()
        stmts += self._sums(
            self.late_sums,
            [self._over_state(lambda k, at: Load(late, (at.slot, k), self.wide))],
            (self.rows,),
            panels,
            at,
        )
        return stmts + self._sync()

    def _terms(
        self, j: Expr, at: At, into: list[Stmt], *, is_late: bool, rows: Rows | None = None
    ) -> Unit:
        """The values from which the cell computes hidden unit j. With `is_late` these include the
        late gate's sum; `rows` gives the registers of the sums.
        """

        def place(gate: int) -> Expr:
            return expr.add(j, expr.index(gate * self.hidden))

        def input(gate: int) -> Expr:
            if rows is not None:
                return rows.input(gate)
            assert self.sums is not None
            return Load(self.sums, (at.slot, place(gate)), self.wide)

        def around(gate: int) -> Expr:
            if rows is not None:
                return rows.around(gate)
            source = self.around
            if is_late and gate == self.cell.late_gate:
                source = self.late_sums
            if source is None:
                return self._number(0)
            return Load(source, (at.slot, place(gate)), self.wide)

        def activate(number: int, x: Expr) -> Expr:
            if self.clip and number not in self.cell.unclipped:
                x = expr.binary(
                    "min", expr.binary("max", x, self._number(-self.clip)), self._number(self.clip)
                )
            return self.activations[number].build(x)

        def peephole(gate: int) -> Expr | None:
            value = self.operands[PEEPHOLES]
            return None if value is None else self._load(value, (at.d, place(gate)))

        def add(a: Expr, b: Expr) -> Expr:
            return a if b is zero else expr.add(a, b)

        zero = self._number(0)
        return Unit(
            [self._before(number, at, j) for number in range(self.cell.states)],
            input,
            around if self.cell.is_split else lambda gate: zero,
            peephole,
            activate,
            lambda value: self.nest.let(value, into, "v"),
            add,
            expr.sub,
            expr.mul,
            self._number(1),
        )

    def _unit(self, j: Expr, at: At, rows: Rows | None = None) -> list[Stmt]:
        stmts: list[Stmt] = []
        unit = self._terms(j, at, stmts, is_late=True, rows=rows)
        fresh = [self.nest.let(value, stmts, "s") for value in self.cell.unit(unit)]
        y = fresh[0]
        if at.is_there is not None:
            # behind a sequence's end y is 0, and the states stay
            y = expr.select(at.is_there, y, self._number(0))
            fresh = [
                self.nest.let(expr.select(at.is_there, new, old), stmts, "s")
                for new, old in zip(fresh, unit.before, strict=True)
            ]
        if self.is_single:
            stmts += [
                self._store(number, (at.d, at.b, j), value)
                for number, value in enumerate(fresh, 1)
                if self.results[number] is not None
            ]
        else:
            # other units still want this one's h from before the step
            targets = [self.following or self.states[0], *self.states[1:]]
            stmts += [Store(t, (at.slot, j), v) for t, v in zip(targets, fresh, strict=True)]
        if self.results[0] is not None:
            stmts.append(self._store(0, (at.t, at.d, at.b, j), y))
        return stmts
