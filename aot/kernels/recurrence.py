"""The LSTM's kernel: all steps of one sequence in one workgroup, lanes along the gates.

Gates of panel-packed weights are read as the panels lie, so that a step runs at memory speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aot.ir import dims, expr
from aot.ir.core import Op, Value
from aot.ir.expr import Binary, Expr, Fma, Load, Var
from aot.ir.types import TensorType
from aot.kernels.inline import flat_index
from aot.kernels.ir import Barrier, Buffer, Space, Stmt, Store
from aot.kernels.nest import Axis, Nest

# gate panels whose accumulators are in flight at once, to hide the multiply-add's latency
PANELS_AT_ONCE = 4


def schedule_lstm(nest: Nest, op: Op, buffers: Mapping[Value, Buffer],
                  results: Sequence[Buffer | None], panel: int) -> tuple[Stmt, ...]:
    """x [T, B, I], w [D, 4H, I], r [D, 4H, H], b [D, 8H], initial h and c [D, B, H], p [D, 3H];
    gates i, o, f, c and peepholes i, o, f as in ONNX. Results y [T, D, B, H], y_h and y_c
    [D, B, H], each where asked for.
    """
    return _Lstm(nest, op, buffers, results, panel).build()


class _Lstm:
    def __init__(self, nest: Nest, op: Op, buffers: Mapping[Value, Buffer],
                 results: Sequence[Buffer | None], panel: int) -> None:
        self.nest, self.op, self.buffers, self.results = nest, op, buffers, results
        self.panel = panel
        padded = [*op.operands, *[None] * (7 - len(op.operands))]
        self.x, self.w, self.r, self.b, self.h0, self.c0, self.p = padded
        assert self.x is not None and self.w is not None and self.r is not None
        self.dtype = self.x.type.dtype
        hidden = self.r.type.dims[2]
        assert isinstance(hidden, int)
        self.hidden = hidden
        self.panels = -(-4 * hidden // panel)
        self.h = nest.builder.scratch("h", self.dtype, (hidden,), Space.WORKGROUP)
        self.c = nest.builder.scratch("c", self.dtype, (hidden,), Space.WORKGROUP)
        self.gates = nest.builder.scratch("gates", self.dtype, (self.panels * panel,),
                                          Space.WORKGROUP)

    def build(self) -> tuple[Stmt, ...]:
        assert self.x is not None and self.w is not None
        steps, batch = self.x.type.dims[0], self.x.type.dims[1]
        directions = self.w.type.dims[0]
        d = Axis(self.nest.builder.var("d"), directions)
        b = Axis(self.nest.builder.var("b"), batch)

        def one(values: dict[Var, Expr]) -> list[Stmt]:
            at_d, at_b = values[d.var], values[b.var]
            stmts = self._start(at_d, at_b)
            stmts += self._sync()
            stmts += self.nest.serial(steps, lambda t: self._step(t, at_d, at_b), "t")
            stmts += self._end(at_d, at_b)
            return stmts

        # each (d, b) keeps its own state in scratch: it is a workgroup whatever its size
        return self.nest.grid([d, b], one, 1 << 30)

    def _sync(self) -> list[Stmt]:
        return [Barrier()] if self.nest.is_gpu else []

    def _load(self, value: Value, indices: Sequence[Expr]) -> Expr:
        return Load(self.buffers[value], (flat_index(value.type, indices),), value.type.dtype)

    def _over_hidden(self, body: Callable[[Expr], Sequence[Stmt]]) -> list[Stmt]:
        """Statements for each hidden unit, in lanes."""
        nest, hidden = self.nest, self.hidden
        width = nest.lanes
        if not nest.is_gpu:
            while width > 1 and hidden % width:
                width //= 2
            return nest.serial(hidden // width, lambda o: [nest.spread(
                width, lambda lane: body(expr.add(expr.mul(o, expr.index(width)), lane)))], "o")

        def guarded(o: Expr, lane: Expr) -> Sequence[Stmt]:
            from aot.kernels.ir import If

            at = expr.add(expr.mul(o, expr.index(width)), lane)
            if hidden % width == 0:
                return body(at)
            return [If(expr.binary("lt", at, expr.index(hidden)), tuple(body(at)))]

        return nest.serial(-(-hidden // width), lambda o: [
            nest.spread(width, lambda lane: guarded(o, lane))], "o")

    def _start(self, d: Expr, b: Expr) -> list[Stmt]:
        def one(j: Expr) -> list[Stmt]:
            zero = expr.const(0, self.dtype)
            return [Store(scratch, (j,), zero if value is None else self._load(value, (d, b, j)))
                    for scratch, value in ((self.h, self.h0), (self.c, self.c0))]
        return self._over_hidden(one)

    def _time(self, t: Expr, d: Expr) -> Expr:
        """Which step of the input is the t-th of direction d."""
        assert self.x is not None
        direction = self.op.attrs["direction"]
        last = expr.index(dims.add(self.x.type.dims[0], -1))
        backward = expr.sub(last, t)
        if direction == "forward":
            return t
        if direction == "reverse":
            return backward
        return expr.select(expr.binary("eq", d, expr.index(0)), t, backward)

    def _step(self, t: Expr, d: Expr, b: Expr) -> list[Stmt]:
        stmts: list[Stmt] = []
        at = self.nest.let(self._time(t, d), stmts, "at")
        group = min(PANELS_AT_ONCE, self.panels)
        while self.panels % group:
            group -= 1
        if self.nest.is_gpu:
            stmts += self._gates_gpu(at, d, b)
        else:
            acc = self.nest.builder.scratch("acc", self.dtype, (group, self.panel))
            stmts += self.nest.serial(
                self.panels // group, lambda g: self._gate_panels(acc, g, group, at, d, b), "g")
        stmts += self._sync()
        stmts += self._over_hidden(lambda j: self._unit(j, at, d, b))
        return stmts + self._sync()

    def _bias(self, d: Expr, gate: Expr) -> Expr:
        """Input and recurrent bias of a gate; padding gates have none."""
        if self.b is None:
            return expr.const(0, self.dtype)
        total = 4 * self.hidden
        parts = []
        for offset in (0, total):
            where = flat_index(self.b.type, (d, expr.add(gate, expr.index(offset))))
            guard = other = None
            if total % self.panel:
                guard = expr.binary("lt", gate, expr.index(total))
                other = expr.const(0, self.dtype)
            parts.append(Load(self.buffers[self.b], (where,), self.dtype, guard, other))
        return expr.add(parts[0], parts[1])

    def _weight(self, value: Value, d: Expr, panel: Expr, lane: Expr, k: Expr) -> Expr:
        """Weight of gate `panel * P + lane` for input k."""
        gate = Var("gate")
        where = flat_index(value.type, (d, gate, k))
        size = expr.index(self.panel)
        whole = expr.add(expr.mul(panel, size), lane)

        def rewrite(e: Expr) -> Expr | None:
            if isinstance(e, Binary) and e.a is gate and expr.dim_of(e.b) == self.panel:
                return panel if e.op == "floordiv" else lane
            return whole if e is gate else None

        address = expr.transform(where, rewrite)
        guard = other = None
        if value.type.layout is None and 4 * self.hidden % self.panel:
            guard = expr.binary("lt", whole, expr.index(4 * self.hidden))
            other = expr.const(0, self.dtype)
        return Load(self.buffers[value], (address,), self.dtype, guard, other)

    def _gate_panels(self, acc: object, g: Expr, group: int, t: Expr, d: Expr,
                     b: Expr) -> list[Stmt]:
        """`group` panels of gates: bias + x W + h R."""
        from aot.kernels.ir import Scratch

        assert isinstance(acc, Scratch) and self.x is not None
        assert self.w is not None and self.r is not None
        nest, x, w, r = self.nest, self.x, self.w, self.r
        size = expr.index(self.panel)

        def lanes(u: Expr, body: Callable[[Expr, Expr], Expr]) -> list[Stmt]:
            panel = expr.add(expr.mul(g, expr.index(group)), u)
            return [nest.spread(self.panel, lambda lane: [
                Store(acc, (u, lane), body(panel, lane))])]

        def add(value: Value, scalar: Expr, k: Expr) -> list[Stmt]:
            return nest.unrolled(group, lambda u: lanes(u, lambda panel, lane: Fma(
                scalar, self._weight(value, d, panel, lane, k),
                Load(acc, (u, lane), self.dtype), self.dtype)))

        stmts = nest.unrolled(group, lambda u: lanes(u, lambda panel, lane: self._bias(
            d, expr.add(expr.mul(panel, size), lane))))
        stmts += nest.serial(x.type.dims[2], lambda k: add(w, self._load(x, (t, b, k)), k), "k")
        stmts += nest.serial(self.hidden, lambda k: add(r, Load(self.h, (k,), self.dtype), k), "k")
        stmts += nest.unrolled(group, lambda u: [nest.spread(self.panel, lambda lane: [Store(
            self.gates, (expr.add(expr.mul(expr.add(expr.mul(g, expr.index(group)), u), size),
                                  lane),), Load(acc, (u, lane), self.dtype))])])
        return stmts

    def _gates_gpu(self, t: Expr, d: Expr, b: Expr) -> list[Stmt]:
        """One gate an invocation."""
        from aot.kernels.ir import If

        assert self.x is not None and self.w is not None and self.r is not None
        nest, x, w, r = self.nest, self.x, self.w, self.r
        size = expr.index(self.panel)
        total = self.panels * self.panel
        acc = nest.builder.scratch("acc", self.dtype, (nest.lanes,))

        def one(o: Expr, lane: Expr) -> list[Stmt]:
            gate = expr.add(expr.mul(o, expr.index(nest.lanes)), lane)
            panel = expr.binary("floordiv", gate, size)
            inner = expr.binary("floormod", gate, size)

            def add(value: Value, scalar: Expr, k: Expr) -> list[Stmt]:
                return [Store(acc, (lane,), Fma(
                    scalar, self._weight(value, d, panel, inner, k),
                    Load(acc, (lane,), self.dtype), self.dtype))]

            stmts: list[Stmt] = [Store(acc, (lane,), self._bias(d, gate))]
            stmts += nest.serial(x.type.dims[2], lambda k: add(
                w, self._load(x, (t, b, k)), k), "k")
            stmts += nest.serial(self.hidden, lambda k: add(
                r, Load(self.h, (k,), self.dtype), k), "k")
            stmts.append(Store(self.gates, (gate,), Load(acc, (lane,), self.dtype)))
            if total % nest.lanes == 0:
                return stmts
            return [If(expr.binary("lt", gate, expr.index(total)), tuple(stmts))]

        return nest.serial(-(-total // nest.lanes), lambda o: [
            nest.spread(nest.lanes, lambda lane: one(o, lane))], "o")

    def _unit(self, j: Expr, t: Expr, d: Expr, b: Expr) -> list[Stmt]:
        """c' = f c + i g; h' = o tanh(c'), the gates after their sigmoid or tanh."""
        stmts: list[Stmt] = []

        def gate(number: int, peep: Expr | None = None) -> Expr:
            where = expr.add(j, expr.index(number * self.hidden))
            value: Expr = Load(self.gates, (where,), self.dtype)
            if self.p is not None and peep is not None:
                value = expr.add(value, expr.mul(self._load(self.p, (d, where)), peep))
            return value

        before = self.nest.let(Load(self.c, (j,), self.dtype), stmts, "c")
        i, f = (expr.unary("sigmoid", gate(n, before)) for n in (0, 2))
        fresh = expr.add(expr.mul(f, before), expr.mul(i, expr.unary("tanh", gate(3))))
        cell = self.nest.let(fresh, stmts, "c")
        o = expr.unary("sigmoid", gate(1, cell))
        hidden = self.nest.let(expr.mul(o, expr.unary("tanh", cell)), stmts, "h")
        stmts += [Store(self.c, (j,), cell), Store(self.h, (j,), hidden)]
        if self.results[0] is not None:
            stmts.append(self._store(0, (t, d, b, j), hidden))
        return stmts

    def _store(self, result: int, indices: Sequence[Expr], value: Expr) -> Stmt:
        buffer = self.results[result]
        assert buffer is not None
        type: TensorType = self.op.results[result].type
        return Store(buffer, (flat_index(type, indices),), value)

    def _end(self, d: Expr, b: Expr) -> list[Stmt]:
        wanted = [(n, s) for n, s in ((1, self.h), (2, self.c)) if self.results[n] is not None]
        if not wanted:
            return []
        return self._over_hidden(lambda j: [
            self._store(n, (d, b, j), Load(s, (j,), self.dtype)) for n, s in wanted])
