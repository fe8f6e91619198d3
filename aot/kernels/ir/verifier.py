"""Checks everything that `aot.kernels.ir.nodes` promises about a kernel, before a backend sees it.

Owns the rules that can be seen without running a kernel; those that cannot (bounds, independence of
iterations) are the interpreter's. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aot.errors import InternalError
from aot.ir import expr
from aot.ir.dims import Dim, symbols
from aot.ir.expr import (
    BINARY_OPS,
    COMPARE_OPS,
    TRANSCENDENTAL_OPS,
    UNARY_OPS,
    Binary,
    Bitcast,
    Cast,
    Const,
    Dot,
    Expr,
    Fma,
    Load,
    Param,
    Reduce,
    Select,
    Size,
    Unary,
    Unpack,
    Var,
    children,
)
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    COMBINE_OPS,
    Barrier,
    Buffer,
    BufferClass,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    Matrix,
    MatrixDot,
    MatrixProduct,
    MatrixStmt,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Space,
    Stmt,
    Store,
    expressions_of,
    walk,
)
from aot.kernels.ir.scalar import schedule

_FLOAT_UNARY = (TRANSCENDENTAL_OPS & UNARY_OPS) | {
    "sqrt",
    "floor",
    "ceil",
    "trunc",
    "round",
    "isnan",
}
_INTEGER_BINARY = frozenset({"floordiv", "floormod", "shl", "shr"})
_BITWISE = frozenset({"and", "or", "xor"})
_CONSTANT_EXTENT = (LoopKind.UNROLLED, LoopKind.VECTOR, LoopKind.LANE)
_SPREAD = (LoopKind.UNROLLED, LoopKind.VECTOR, LoopKind.LANE)
_READ_ONLY = (BufferClass.CONSTANTS, BufferClass.INPUTS)


def verify(kernel: Kernel) -> None:
    """Checks that a kernel is well-formed.

    Raises:
        InternalError: naming the kernel, what is wrong and where.
    """
    checker = _Verifier(kernel)
    checker.declarations()
    checker.top()
    checker.uniform_scratch()


class _Verifier:
    """One pass over a kernel with the loops and variables in scope."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.index_params = {p.name for p in kernel.params if p.dtype is DType.INDEX}
        self.params = {p.name: p for p in kernel.params}
        self.scope: dict[Var, For | Let | Combine] = {}
        self.loops: list[For] = []
        self.spread_vars: set[Var] = set()  # constants once loops are unrolled and spread
        self.lane_extents: dict[int, int] = {}
        self.has_lanes = any(
            isinstance(s, For) and s.kind is LoopKind.LANE for s in walk(kernel.body)
        )

    def fail(self, message: str) -> InternalError:
        where = "".join(f" in {loop.kind.value} loop {loop.var.name}" for loop in self.loops[-1:])
        return InternalError(f"kernel {self.kernel.name}: {message}{where}")

    # Declarations

    def declarations(self) -> None:
        kernel = self.kernel
        if not kernel.name.isidentifier():
            raise self.fail(f"{kernel.name!r} is not an identifier")
        self._unique("parameter", (p.name for p in kernel.params))
        self._unique(
            "buffer or scratch",
            (*(b.name for b in kernel.buffers), *(s.name for s in kernel.scratch)),
        )
        if len({b.offset for b in kernel.buffers}) != len(kernel.buffers):
            raise self.fail("two buffers share an offset parameter")
        for buffer in kernel.buffers:
            self._buffer(buffer)
        for scratch in kernel.scratch:
            if any(type(d) is not int or d < 1 for d in scratch.shape):
                raise self.fail(
                    f"scratch {scratch.name} has shape {scratch.shape}: expected positive integers"
                )

    def _unique(self, what: str, names: Iterable[str]) -> None:
        seen: set[str] = set()
        for name in names:
            if not name.isidentifier():
                raise self.fail(f"{what} name {name!r} is not an identifier")
            if name in seen:
                raise self.fail(f"{what} name {name} is used twice")
            seen.add(name)

    def _buffer(self, buffer: Buffer) -> None:
        self._param(buffer.offset)
        if buffer.offset.dtype is not DType.INDEX:
            raise self.fail(
                f"the offset of buffer {buffer.name} is {buffer.offset.dtype}, expected index"
            )
        if buffer.dtype is DType.INDEX:
            raise self.fail(f"buffer {buffer.name} has dtype index, which has no size in memory")
        if len(buffer.shape) != len(buffer.strides):
            raise self.fail(
                f"buffer {buffer.name} has {len(buffer.shape)} dims and "
                f"{len(buffer.strides)} strides"
            )
        if buffer.class_param is not None:
            self._param(buffer.class_param)
        if buffer.is_written and buffer.binding in _READ_ONLY:
            raise self.fail(f"buffer {buffer.name} of class {buffer.binding.name} is written")
        for dim in (*buffer.shape, *buffer.strides):
            self._dim(dim, f"buffer {buffer.name}")

    def _dim(self, dim: Dim, what: str) -> None:
        if type(dim) is bool:
            raise self.fail(f"{what} has {dim} for a dim")
        missing = sorted(symbols(dim) - self.index_params)
        if missing:
            raise self.fail(f"{what} uses {', '.join(missing)}: no such index parameter")

    def _param(self, param: Param) -> None:
        declared = self.params.get(param.name)
        if declared is None or declared.dtype is not param.dtype:
            raise self.fail(f"{param.dtype} parameter {param.name} is not declared")

    # Statements

    def top(self) -> None:
        """Checks the WORKGROUP loops, which are perfectly nested and have each axis at most once,
        and then the statements inside."""
        body = self.kernel.body
        axes: set[int] = set()
        while len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.WORKGROUP:
            loop = body[0]
            self._loop_head(loop)
            if loop.axis in axes:
                raise self.fail(f"two workgroup loops on axis {loop.axis}")
            axes.add(loop.axis)
            self._bind(loop.var, loop)
            self.loops.append(loop)
            body = loop.body
        self.body(body)

    def body(self, body: tuple[Stmt, ...]) -> None:
        bound: list[Var] = []
        for stmt in body:
            match stmt:
                case For():
                    self.loop(stmt)
                case Let():
                    self.let(stmt)
                    bound.append(stmt.var)
                case Store():
                    self.store(stmt)
                case If():
                    self.expect(stmt.condition, DType.BOOL, "the condition of an if")
                    self.body(stmt.then)
                    self.body(stmt.otherwise)
                case Prefetch():
                    self.prefetch(stmt)
                case MatrixDot():
                    self.matrix_dot(stmt)
                case MatrixZero() | MatrixProduct() | MatrixStore():
                    self.matrix_statement(stmt)
                case Barrier():
                    self.barrier()
                case Combine():
                    self.combine(stmt)
                    bound.append(stmt.result)
                case _:
                    raise self.fail(f"{type(stmt).__name__} is not a statement")
        for var in bound:
            self._unbind(var)

    def loop(self, loop: For) -> None:
        if loop.kind is LoopKind.WORKGROUP:
            raise self.fail(f"workgroup loop {loop.var.name} is not outermost")
        self._loop_head(loop)
        if loop.kind is LoopKind.LANE:
            self._lane_loop(loop)
        self._bind(loop.var, loop)
        if loop.kind in _SPREAD:
            self.spread_vars.add(loop.var)
        self.loops.append(loop)
        self.body(loop.body)
        self.loops.pop()
        self._unbind(loop.var)

    def _loop_head(self, loop: For) -> None:
        if loop.var.dtype is not DType.INDEX:
            raise self.fail(f"loop variable {loop.var.name} is {loop.var.dtype}, expected index")
        self._dim(loop.extent, f"the extent of loop {loop.var.name}")
        if loop.kind in _CONSTANT_EXTENT and not isinstance(loop.extent, int):
            raise self.fail(
                f"{loop.kind.value} loop {loop.var.name} has extent {loop.extent}: "
                "expected a constant"
            )
        if isinstance(loop.extent, int) and loop.extent < 0:
            raise self.fail(f"loop {loop.var.name} has extent {loop.extent}")
        if loop.axis not in (0, 1, 2):
            raise self.fail(f"loop {loop.var.name} is on axis {loop.axis}: expected 0, 1 or 2")

    def _lane_loop(self, loop: For) -> None:
        if any(o.kind is LoopKind.LANE and o.axis == loop.axis for o in self.loops):
            raise self.fail(f"lane loop {loop.var.name} stands inside another on axis {loop.axis}")
        extent = self.lane_extents.setdefault(loop.axis, loop.count)
        if extent != loop.count or extent < 1:
            raise self.fail(
                f"lane loop {loop.var.name} has extent {loop.count}: expected "
                f"{max(extent, 1)}, as others on axis {loop.axis}"
            )
        if any(o.kind is LoopKind.VECTOR for o in self.loops):
            raise self.fail(f"lane loop {loop.var.name} stands inside a vector loop")

    def _bind(self, var: Var, by: For | Let | Combine) -> None:
        if not var.name.isidentifier():
            raise self.fail(f"variable name {var.name!r} is not an identifier")
        if any(var.name == other.name for other in self.scope):
            raise self.fail(f"variable {var.name} hides another of that name")
        self.scope[var] = by

    def _unbind(self, var: Var) -> None:
        del self.scope[var]
        self.spread_vars.discard(var)

    def let(self, stmt: Let) -> None:
        self.expect(stmt.value, stmt.var.dtype, f"the value of {stmt.var.name}")
        self._bind(stmt.var, stmt)
        if self._is_spread(stmt.value):
            self.spread_vars.add(stmt.var)

    def prefetch(self, stmt: Prefetch) -> None:
        self.expect(stmt.index, DType.INDEX, f"the index of a prefetch of {stmt.source.name}")
        self._source(stmt.source, (stmt.index,))
        self._outside_vectors(f"prefetch of {stmt.source.name}")

    def _outside_vectors(self, what: str) -> None:
        if any(loop.kind in (LoopKind.VECTOR, LoopKind.LANE) for loop in self.loops):
            raise self.fail(f"{what} inside a vector or lane loop")

    def matrix_dot(self, stmt: MatrixDot) -> None:
        sums = stmt.sums
        if sums.space is not Space.REGISTER or sums.shape[-1] != 8:
            raise self.fail(f"{sums.name} has no lines of 8 sums in registers")
        loads = stmt.rows, *stmt.columns
        are_words = all(x.dtype is DType.BF16X2 or x.dtype.parts == 4 for x in loads)
        if not are_words or any(load.guard is not None for load in loads):
            raise self.fail(f"matrix products into {sums.name} of what are no such words")
        self._outside_vectors(f"matrix products into {sums.name}")
        for store in stmt.meaning():
            self.store(store)

    def matrix_statement(self, stmt: MatrixStmt) -> None:
        sums, kinds = stmt.sums, {loop.kind for loop in self.loops}
        if sums.space is not Space.MATRIX or len(sums.shape) < 2:
            raise self.fail(f"{sums.name} holds no matrices")
        axes = {loop.axis for loop in self.loops if loop.kind is LoopKind.LANE}
        if axes != {1} or kinds & {LoopKind.VECTOR, LoopKind.PARALLEL}:
            raise self.fail(f"matrices of {sums.name} are not those of a subgroup")
        if self._lane_axes() - {0, 1}:
            raise self.fail(f"matrices of {sums.name} beside lanes along a third axis")
        zero = expr.index(0)
        for index in stmt.place:
            self.expression(index)
        self._source(sums, (*stmt.place, zero, zero))
        if isinstance(stmt, MatrixProduct):
            self._matrix(stmt.left)
            self._matrix(stmt.right)
            if stmt.terms < 1:
                raise self.fail(f"products of {stmt.terms} terms into {sums.name}")
        elif isinstance(stmt, MatrixStore):
            target = stmt.target
            self._matrix(target)
            if target.source.dtype is not sums.dtype:
                raise self.fail(f"matrices of {sums.dtype} stored to {target.source.name}")
            self._may_store(target.source)

    def _matrix(self, matrix: Matrix) -> None:
        source = matrix.source
        for index in matrix.indices:
            self.expression(index)
        self._source(source, matrix.indices)
        if isinstance(source, Buffer):
            is_placed = source.strides == (1,)
        else:
            is_placed = source.space is Space.WORKGROUP and source.shape[-1] == matrix.step
        if not is_placed or matrix.step < 1:
            raise self.fail(f"{source.name} has no matrix whose rows are {matrix.step} apart")

    def store(self, stmt: Store) -> None:
        target = stmt.target
        for index in stmt.indices:
            self.expression(index)
        self._source(target, stmt.indices)
        self.expect(stmt.value, target.dtype, f"the value stored to {target.name}")
        if stmt.guard is not None:
            self.expect(stmt.guard, DType.BOOL, f"the guard of a store to {target.name}")
        self._may_store(target)
        if isinstance(target, Scratch) and target.space is Space.MATRIX:
            raise self.fail(f"store to {target.name}, an element of a matrix")
        if isinstance(target, Scratch) and target.space is Space.REGISTER:
            return
        if self.has_lanes:
            missing = self._lane_axes() - {o.axis for o in self.loops if o.kind is LoopKind.LANE}
            if missing:
                raise self.fail(
                    f"store to {target.name} outside the lane loops of axis "
                    f"{min(missing)}: every lane would do it"
                )

    def _may_store(self, target: Buffer | Scratch) -> None:
        if isinstance(target, Buffer) and not target.is_written:
            raise self.fail(f"store to {target.name}, which is not marked as written")

    def _lane_axes(self) -> set[int]:
        return {
            s.axis for s in walk(self.kernel.body) if isinstance(s, For) and s.kind is LoopKind.LANE
        }

    def barrier(self) -> None:
        inside = {LoopKind.LANE, LoopKind.VECTOR, LoopKind.PARALLEL} & {o.kind for o in self.loops}
        if inside:
            raise self.fail(f"barrier inside a {min(k.value for k in inside)} loop")

    def combine(self, stmt: Combine) -> None:
        self.barrier()
        if self._lane_axes() - {0}:
            raise self.fail(f"{stmt.result.name} combines lanes along one axis of several")
        self._lane_loop(For(stmt.lane, stmt.extent, LoopKind.LANE, ()))
        shared = stmt.shared
        if shared.space is not Space.WORKGROUP or shared.shape != (stmt.extent,):
            raise self.fail(f"{shared.name} is not shared, with an element a lane")
        if stmt.op not in COMBINE_OPS:
            raise self.fail(f"lanes can't be combined by {stmt.op}")
        self._bind(stmt.lane, stmt)
        self.spread_vars.add(stmt.lane)
        self.expect(stmt.value, stmt.result.dtype, f"what {stmt.result.name} combines")
        self._unbind(stmt.lane)
        self._bind(stmt.result, stmt)

    def uniform_scratch(self) -> None:
        """Checks that lane-private scratch stored under LANE loops of some axes is also read under
        LANE loops of these axes.
        """
        if not self.has_lanes:
            return
        stored: dict[Scratch, set[int]] = {}
        placed = list(_with_lane_axes(self.kernel.body, frozenset()))
        for stmt, axes in placed:
            target = stmt.target if isinstance(stmt, Store) else None
            if isinstance(target, Scratch) and target.space is not Space.WORKGROUP:
                stored.setdefault(target, set()).update(axes)
        for stmt, axes in placed:
            for node in schedule(list(expressions_of(stmt))):
                if isinstance(node, Load) and not stored.get(node.source, set()) <= axes:
                    raise self.fail(
                        f"{node.source.name} differs from lane to lane and is read "
                        "outside their loop"
                    )

    # Expressions

    def expect(self, e: Expr, dtype: DType, what: str) -> None:
        self.expression(e)
        if e.dtype is not dtype:
            raise self.fail(f"{what} is {e.dtype}, expected {dtype}")

    def expression(self, root: Expr) -> None:
        for e in schedule([root]):
            self.node(e)

    def node(self, e: Expr) -> None:
        match e:
            case Const():
                self._const(e)
            case Var():
                if e not in self.scope:
                    raise self.fail(f"variable {e.name} is not bound")
            case Size():
                self._dim(e.dim, "a size")
            case Param():
                self._param(e)
            case Load():
                self._load(e)
            case Unary():
                self._unary(e)
            case Binary():
                self._binary(e)
            case Fma():
                self._all(e, e.dtype, "fma")
                if not e.dtype.is_float:
                    raise self.fail(f"fma of {e.dtype}")
            case Dot():
                is_word = e.a.dtype.is_packed and e.b.dtype.is_packed
                are_floats = {DType.BF16X2} & {e.a.dtype, e.b.dtype}
                sums = {DType.F32} if are_floats else {DType.I32}
                if e.a.dtype.parts == 4:
                    sums.add(DType.I16X2)
                is_sum = e.c.dtype is e.dtype and e.dtype in sums
                is_sum = is_sum and (not are_floats or e.a.dtype is e.b.dtype)
                if not is_word or e.a.dtype.parts != e.b.dtype.parts or not is_sum:
                    raise self.fail(f"dot of {e.a.dtype}, {e.b.dtype} and {e.c.dtype}")
            case Unpack():
                if e.a.dtype not in (DType.I8X4, DType.U8X4) or not set(e.parts) <= set(range(4)):
                    raise self.fail(f"parts {e.parts} of {e.a.dtype}")
            case Select():
                if e.condition.dtype is not DType.BOOL:
                    raise self.fail(f"select by {e.condition.dtype}, expected bool")
                if not e.a.dtype is e.b.dtype is e.dtype:
                    raise self.fail(f"select of {e.a.dtype} and {e.b.dtype} as {e.dtype}")
            case Cast():
                pass
            case Bitcast():
                if e.a.dtype.bits != e.dtype.bits or DType.BOOL in (e.dtype, e.a.dtype):
                    raise self.fail(f"bitcast of {e.a.dtype} to {e.dtype}")
            case Reduce():
                raise self.fail("a reduce stands in a kernel: expected loops")
            case _:
                raise self.fail(f"{type(e).__name__} is not an expression")

    def _all(self, e: Expr, dtype: DType, what: str) -> None:
        for child in children(e):
            if child.dtype is not dtype:
                raise self.fail(f"{what} of {child.dtype} gives {dtype}")

    def _const(self, e: Const) -> None:
        is_bool = type(e.value) is bool
        if (e.dtype is DType.BOOL) != is_bool:
            raise self.fail(f"literal {e.value!r} of {e.dtype}")
        if e.dtype.is_integer:
            bits = e.dtype.bits
            low, high = (
                (-(1 << bits - 1), (1 << bits - 1) - 1)
                if e.dtype.is_signed
                else (0, (1 << bits) - 1)
            )
            if not isinstance(e.value, int) or not low <= e.value <= high:
                raise self.fail(f"literal {e.value!r} of {e.dtype}")

    def _load(self, e: Load) -> None:
        self._source(e.source, e.indices)
        if isinstance(e.source, Scratch) and e.source.space is Space.MATRIX:
            raise self.fail(f"load of {e.source.name}, an element of a matrix")
        if e.source.dtype not in (e.dtype, e.dtype.part):
            raise self.fail(f"load of {e.source.dtype} {e.source.name} as {e.dtype}")
        if (e.guard is None) != (e.other is None):
            raise self.fail(
                f"load of {e.source.name} has a guard without a value for where it "
                "fails, or the reverse"
            )
        if e.guard is not None and e.guard.dtype is not DType.BOOL:
            raise self.fail(f"the guard of a load of {e.source.name} is {e.guard.dtype}")
        if e.other is not None and e.other.dtype is not e.dtype:
            raise self.fail(f"load of {e.dtype} {e.source.name} or else {e.other.dtype}")

    def _source(self, source: object, indices: tuple[Expr, ...]) -> None:
        if isinstance(source, Buffer):
            is_known = source in self.kernel.buffers
        elif isinstance(source, Scratch):
            is_known = source in self.kernel.scratch
        else:
            raise self.fail(f"access of {source!r}, which is neither buffer nor scratch")
        if not is_known:
            raise self.fail(f"{source.name} is not declared")
        if len(indices) != len(source.shape):
            raise self.fail(f"{len(indices)} indices of {source.name} of rank {len(source.shape)}")
        for dim, index in enumerate(indices):
            if index.dtype is not DType.INDEX:
                raise self.fail(f"index {dim} of {source.name} is {index.dtype}, expected index")
            if (
                isinstance(source, Scratch)
                and source.space in (Space.REGISTER, Space.MATRIX)
                and not self._is_spread(index)
            ):
                raise self.fail(
                    f"index {dim} of register scratch {source.name} does not become a "
                    "constant: expected variables of unrolled, vector or lane loops"
                )

    def _is_spread(self, e: Expr) -> bool:
        return all(
            n in self.spread_vars if isinstance(n, Var) else not isinstance(n, (Load, Param, Size))
            for n in schedule([e])
        )

    def _unary(self, e: Unary) -> None:
        dtype = e.a.dtype
        if e.op not in UNARY_OPS:
            raise self.fail(f"unknown unary op {e.op!r}")
        result = DType.BOOL if e.op in ("isnan", "not") else dtype
        is_legal = (
            dtype.is_float
            if e.op in _FLOAT_UNARY
            else dtype is DType.BOOL
            if e.op == "not"
            else dtype.is_integer
            if e.op == "bitnot"
            else dtype is not DType.BOOL
        )
        if not is_legal or e.dtype is not result:
            raise self.fail(f"{e.op} of {dtype} gives {e.dtype}")

    def _binary(self, e: Binary) -> None:
        dtype = e.a.dtype
        if e.op not in BINARY_OPS and e.op not in COMPARE_OPS:
            raise self.fail(f"unknown binary op {e.op!r}")
        if e.b.dtype is not dtype:
            raise self.fail(f"{e.op} of {dtype} and {e.b.dtype}")
        result = DType.BOOL if e.op in COMPARE_OPS else dtype
        is_legal = (
            dtype.is_float
            if e.op in ("pow", "fmod")
            else dtype.is_integer
            if e.op in _INTEGER_BINARY
            else not dtype.is_float
            if e.op in _BITWISE
            else True
            if e.op in ("eq", "ne")
            else dtype is not DType.BOOL
        )
        if not is_legal or e.dtype is not result:
            raise self.fail(f"{e.op} of {dtype} gives {e.dtype}")


def _with_lane_axes(
    body: tuple[Stmt, ...], axes: frozenset[int]
) -> Iterator[tuple[Stmt, frozenset[int]]]:
    """Every statement, paired with the axes of the LANE loops around it."""
    for stmt in body:
        yield stmt, axes | {0} if isinstance(stmt, Combine) else axes
        if isinstance(stmt, For):
            is_lane = stmt.kind is LoopKind.LANE
            yield from _with_lane_axes(stmt.body, axes | {stmt.axis} if is_lane else axes)
        elif isinstance(stmt, If):
            yield from _with_lane_axes((*stmt.then, *stmt.otherwise), axes)
