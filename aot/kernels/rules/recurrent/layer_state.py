"""What the loops of a recurrent layer keep: its operands, sizes, and states in scratch.

Decides how many sequences share a workgroup. Has the loads and stores of states, and no step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aot.ir import dims, expr
from aot.ir.expr import Expr, Load
from aot.ir.graph import Value
from aot.ir.types import TensorType
from aot.kernels.ir.nodes import Barrier, If, Scratch, Stmt, Store
from aot.kernels.nest.inline import flat_index, stored
from aot.kernels.nest.tiles import ReusedScratch
from aot.kernels.rules.recurrent.recurrence_parts import At
from aot.kernels.rules.rule import OpWork
from aot.ops.elementwise import narrowed
from aot.ops.recurrent import INITIAL_C, INITIAL_H, LENGTHS, R, W, X, activations_of, cell_of

# gate panels whose accumulators are in flight at once, to hide the multiply-add's latency
PANELS_AT_ONCE = 4
# sequences side by side at most
MOST_SLOTS = 6
# the same of an open number of sequences; and the numbers up to which loops of fewer do all
OPEN_SLOTS, FEW_SLOTS = 4, (2, 1)


class LayerState:
    """What the loops of a layer share: its operands, its sizes, and its scratch.

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

    def _each_slot(self, at: At, body: Callable[[At], list[Stmt]]) -> list[Stmt]:
        return self.nest.serial(self.slots, lambda s: body(self._in_slot(at, s)), "s")

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
