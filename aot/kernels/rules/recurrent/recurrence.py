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
from aot.ir.expr import Binary, Expr, Fma, Load, Var
from aot.ir.graph import Value
from aot.ir.types import TensorType
from aot.kernels.ir.nodes import Barrier, If, Scratch, Stmt, Store
from aot.kernels.match.work import Loops
from aot.kernels.nest.inline import flat_index, stored
from aot.kernels.nest.nest import Axis
from aot.kernels.nest.tiles import ReusedScratch
from aot.kernels.nest.two_ways import up_to
from aot.kernels.rules.recurrent.recurrence_parts import Add, At, Rows, Term
from aot.kernels.rules.rule import OpWork
from aot.ops.cells import Unit
from aot.ops.elementwise import narrowed
from aot.ops.recurrent import (
    INITIAL_C,
    INITIAL_H,
    LENGTHS,
    PEEPHOLES,
    B,
    R,
    W,
    X,
    activations_of,
    cell_of,
)

# gate panels whose accumulators are in flight at once, to hide the multiply-add's latency
PANELS_AT_ONCE = 4
# sequences side by side at most
MOST_SLOTS = 6
# the same of an open number of sequences; and the numbers up to which loops of fewer do all
OPEN_SLOTS, FEW_SLOTS = 4, (2, 1)


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


class _Layer:
    """The loops of a layer.

    Args:
        slots: how many sequences a workgroup takes; None for as many as are best.
    """

    def __init__(self, work: OpWork, scratch: ReusedScratch, slots: int | None = None) -> None:
        nest, op = work.nest, work.op
        self.nest, self.op, self.scratch = nest, op, scratch
        self.buffers, self.results = work.buffers, work.results
        self.panel = panel = nest.target.panel
        self.operands = [*op.operands, *[None] * (8 - len(op.operands))]
        self.x, self.r = self._operand(X), self._operand(R)
        self.w = self.operands[W]  # None: x is the sums that it would give
        self.cell = cell_of(op.name, op.attrs)
        self.activations = activations_of(op.attrs)
        self.clip = op.float("clip")
        self.r_scale = op.float("r_scale")
        self.dtype = self.x.type.dtype
        self.wide = self.dtype.accumulator
        self.hidden = hidden = int(self.r.type.dims[2])
        self.rows = self.cell.gates * hidden
        self.panels = -(-self.rows // panel)
        # a CPU adds up the gates of some units in registers, where their panels begin together
        self.is_fused = (
            not nest.is_gpu and self.cell.late_state is None and hidden % panel == 0 and hidden > 0
        )
        self.slots = slots or self._slots()
        # a layer of one step reads its states from the operands, and keeps none
        self.is_single = self.is_fused and self.x.type.dims[0] == 1
        names = "" if self.is_single else "hc"[: self.cell.states]
        self.states = [self._scratch(name, hidden) for name in names]
        self.following = (
            self._scratch("h_next", hidden) if self.is_fused and not self.is_single else None
        )
        gates = 0 if self.is_fused else self.panels * panel
        self.sums = self._scratch("gates", gates) if gates else None
        self.around = self._scratch("around", gates) if gates and self.cell.is_split else None
        self.late = self._scratch("late", hidden) if self.cell.late_state else None
        self.late_sums = self._scratch("late_gates", gates) if self.cell.late_state else None

    def _operand(self, number: int) -> Value:
        value = self.operands[number]
        assert value is not None
        return value

    def _scratch(self, name: str, extent: int) -> Scratch:
        return self.scratch.get(name, self.wide, (self.slots, extent))

    def _slots(self) -> int:
        """The number of sequences per workgroup, which share each load of weights: at most as many
        as registers hold sums for. A batch that allows it is divided over two workgroups, for two
        threads, unless the weights leave the cache between steps."""
        nest, batch, directions = self.nest, self.x.type.dims[1], self.r.type.dims[0]
        if nest.is_gpu or self.operands[LENGTHS] is not None:
            return 1
        if not isinstance(directions, int) or batch == 0:
            return 1
        sums = self._sums_at_once() * max(1, self.panel // nest.lanes)
        most = min(MOST_SLOTS, (nest.target.vector_registers - 2) // (sums + 1))
        if not isinstance(batch, int):
            return max(1, min(OPEN_SLOTS, most, self._slots_in_scratch()))
        if self.rows * self.hidden * self.dtype.bytes <= nest.target.l2_bytes // 2:
            most = min(most, max(2, -(-batch * directions // 2)))
        most = max(1, most)
        return -(-batch // -(-batch // most))

    def _slots_in_scratch(self) -> int:
        """The number of sequences whose states and sums fit a worker's scratch."""
        gates = 0 if self.is_fused else 2 * self.panels * self.panel
        each = (3 * self.hidden + gates) * self.wide.bytes
        return self.nest.target.scratch_bytes // max(1, each)

    def fewer_slots(self) -> Sequence[int]:
        """Smaller sequence counts, largest first, that get their own loops in case a batch has no
        more; a slot without a sequence repeats another one's.
        """
        if isinstance(self.x.type.dims[1], int):
            return ()
        return [n for n in FEW_SLOTS if n < self.slots]

    def _sums_at_once(self) -> int:
        """The number of a sequence's panels whose sums are in registers together."""
        if not self.is_fused:
            return min(PANELS_AT_ONCE, self.panels)
        each = self.cell.gates * (2 if self.cell.is_split else 1)
        return each * self._units_at_once(each)

    def _units_at_once(self, each: int) -> int:
        """Panels of units that a fused step computes together, with `each` sums per panel."""
        count = self.hidden // self.panel
        most = max(1, PANELS_AT_ONCE // each)
        return max(n for n in range(1, most + 1) if count % n == 0)

    def _sequences(self, first: Expr, body: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """A loop with `body(slot, sequence)` over a workgroup's sequences, from `first`."""
        return self.nest.serial(self.slots, lambda s: body(s, self._sequence(first, s)), "s")

    def _sequence(self, first: Expr, slot: Expr) -> Expr:
        """The sequence of a slot; slots past the batch repeat the last sequence."""
        batch, at = self.x.type.dims[1], expr.add(first, slot)
        if dims.modulo(batch, self.slots) == 0:
            return at
        return expr.binary("min", at, expr.index(dims.add(batch, -1)))

    def _in_slot(self, at: At, slot: Expr) -> At:
        return replace(at, slot=slot, b=self._sequence(at.b, slot)) if self.slots > 1 else at

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

    def _sync(self) -> list[Stmt]:
        return [Barrier()] if self.nest.is_gpu else []

    def _load(self, value: Value, indices: Sequence[Expr]) -> Expr:
        source = stored(value)
        address = flat_index(source.type, indices)
        return expr.cast(Load(self.buffers[source], (address,), source.type.dtype), self.wide)

    def _number(self, value: float) -> Expr:
        return expr.const(value, self.wide)

    def _over_hidden(self, body: Callable[[Expr], Sequence[Stmt]]) -> list[Stmt]:
        """Statements for each hidden unit, in lanes."""
        nest, hidden, width = self.nest, self.hidden, self.nest.lanes
        if not nest.is_gpu:
            stmts: list[Stmt] = []
            done = 0
            while done < hidden:  # ever narrower vectors
                while width > hidden - done:
                    width //= 2
                stmts += self._vectors(done, (hidden - done) // width, width, body)
                done += (hidden - done) // width * width
            return stmts

        def guarded(o: Expr, lane: Expr) -> Sequence[Stmt]:
            at = expr.add(expr.mul(o, expr.index(width)), lane)
            if hidden % width == 0:
                return body(at)
            return [If(expr.binary("lt", at, expr.index(hidden)), tuple(body(at)))]

        return nest.serial(
            -(-hidden // width), lambda o: [nest.spread(width, lambda lane: guarded(o, lane))], "o"
        )

    def _vectors(
        self, first: int, count: int, width: int, body: Callable[[Expr], Sequence[Stmt]]
    ) -> list[Stmt]:
        """The statements of `body` for `count` vectors of units, from unit `first` on."""

        def one(o: Expr) -> list[Stmt]:
            start = expr.add(expr.mul(o, expr.index(width)), expr.index(first))
            return [self.nest.spread(width, lambda lane: body(expr.add(start, lane)))]

        return self.nest.serial(count, one, "o")

    def _initial(self, state: int, d: Expr, b: Expr, j: Expr) -> Expr:
        """An element of the initial state: unit j of sequence b, direction d."""
        value = self.operands[(INITIAL_H, INITIAL_C)[state]]
        return self._number(0) if value is None else self._load(value, (d, b, j))

    def _before(self, state: int, at: At, j: Expr) -> Expr:
        """An element of the state before a step: unit j."""
        if self.is_single:
            return self._initial(state, at.d, at.b, j)
        return Load(self.states[state], (at.slot, j), self.wide)

    def _start(self, d: Expr, b: Expr) -> list[Stmt]:
        if self.is_single:
            return []

        def one(slot: Expr, b: Expr, j: Expr) -> list[Stmt]:
            return [
                Store(scratch, (slot, j), self._initial(number, d, b, j))
                for number, scratch in enumerate(self.states)
            ]

        return self._sequences(b, lambda slot, b: self._over_hidden(lambda j: one(slot, b, j)))

    # time

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

    def _each_slot(self, at: At, body: Callable[[At], list[Stmt]]) -> list[Stmt]:
        return self.nest.serial(self.slots, lambda s: body(self._in_slot(at, s)), "s")

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

        stmts = nest.serial(count // group, one, "g")
        if self.following is None:
            return stmts
        state, following = self.states[0], self.following

        def pass_on(at: At, j: Expr) -> list[Stmt]:
            return [Store(state, (at.slot, j), Load(following, (at.slot, j), self.wide))]

        return stmts + self._each_slot(at, lambda at: self._over_hidden(lambda j: pass_on(at, j)))

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

    # sums of the gates

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

    # one unit

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

    def _store(self, result: int, indices: Sequence[Expr], value: Expr) -> Stmt:
        buffer = self.results[result]
        assert buffer is not None
        type: TensorType = self.op.results[result].type
        rounded = narrowed(expr.cast(value, self.dtype), buffer.dtype)
        return Store(buffer, (flat_index(type, indices),), rounded)

    def _end(self, d: Expr, b: Expr) -> list[Stmt]:
        wanted = [(n, s) for n, s in enumerate(self.states, 1) if self.results[n] is not None]
        if not wanted:
            return []

        def one(slot: Expr, b: Expr, j: Expr) -> list[Stmt]:
            return [self._store(n, (d, b, j), Load(s, (slot, j), self.wide)) for n, s in wanted]

        return self._sequences(b, lambda slot, b: self._over_hidden(lambda j: one(slot, b, j)))
