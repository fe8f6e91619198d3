"""Emits statements: loops of every kind, conditions as branches or masks, stores.

Owns how a loop runs on a CPU: the grid comes in as arguments, lanes and parallel loops run one
after another, vector loops become SIMD in pieces that fit the machine.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.cpu import dot_products, quantising
from aot.backends.cpu.assembler import Assembler, Type, Value, integer
from aot.backends.cpu.expressions import Expressions
from aot.backends.cpu.lanes import Affine, Lanes
from aot.backends.cpu.memory import Memory
from aot.backends.cpu.scopes import Scopes
from aot.backends.cpu.scratch import loads, plan_scratch
from aot.backends.cpu.traits import Traits
from aot.backends.cpu.transposed import Block, block_of, load_columns, store_columns
from aot.errors import InternalError
from aot.ir import dims
from aot.ir.assumed_extents import ITERATIONS
from aot.ir.dims import Dim
from aot.ir.expr import Binary, Cast, Expr, Load, children, free_vars, index
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Barrier,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixDot,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Space,
    Stmt,
    Store,
    walk,
)

_MAX_UNROLLED_PIECES = 4
# how often a condition is taken to hold to how often not: what is rare, such as the guards of a
# border's tiles, must not take the registers of sums that all tiles have
_THEN_ODDS = 255, 1


class KernelEmitter:
    """Writes one kernel's function body."""

    def __init__(self, kernel: Kernel, traits: Traits) -> None:
        self.kernel = kernel
        self.traits = traits
        self.asm = Assembler()
        self.lanes = Lanes(self.asm, traits)
        self.scopes = Scopes()
        self.plan = plan_scratch(kernel, traits)
        self.expressions = Expressions(self.lanes, self.scopes)
        self.memory = Memory(kernel, self.lanes, self.scopes, self.plan, self.expressions.evaluate)
        self.expressions.memory = self.memory
        self._widths: dict[For, int] = {}
        self._spread: dict[For, bool] = {}
        self._blocks: dict[For, Block | None] = {}

    def run(self) -> None:
        """Emits the kernel; the text is then in `asm`."""
        start = self.asm.block("body")
        self.asm.enter(start)
        self.body(self.kernel.body)
        self.memory.fence()
        self.asm.emit_void("ret void")
        self.asm.current = self.asm.entry
        self.asm.jump(start)

    def body(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case For():
                    self.loop(stmt)
                case Let():
                    self.let(stmt)
                case Store():
                    self.store(stmt)
                case If():
                    self.branch(stmt)
                case Prefetch():
                    self.scopes.open(is_region=False)
                    self.memory.prefetch(stmt.source, stmt.index)
                    self.scopes.close()
                case MatrixDot():
                    self.matrix_dot(stmt)
                case MatrixZero() | MatrixProduct() | MatrixStore():
                    raise InternalError(f"kernel {self.kernel.name}: matrices of a subgroup")
                case Barrier():
                    pass  # lanes run to the end of each LANE loop before anything after it

    def scoped(self, body: tuple[Stmt, ...], *, is_region: bool) -> None:
        self.scopes.open(is_region=is_region)
        self.body(body)
        self.scopes.close()

    # Simple statements. Each has a scope for what it loads: the next may load something else.

    def let(self, stmt: Let) -> None:
        self.scopes.open(is_region=False)
        value = self.expressions.root(stmt.value)
        self.scopes.close()
        self.scopes.bind(
            stmt.var, value, is_nonnegative=self.scopes.facts(stmt.value).is_nonnegative
        )

    def store(self, stmt: Store) -> None:
        self.scopes.open(is_region=False)
        guard = self.expressions.condition(stmt.guard)
        value = self.expressions.root(stmt.value)
        target = stmt.target
        if stmt.value.dtype is not target.dtype:
            raise InternalError(f"store of {stmt.value.dtype} to {target.name} of {target.dtype}")

        def write() -> None:
            self.memory.store(target, stmt.indices, value, guard, self.expressions.mask)

        missing = self.missing_lanes(target)
        if missing:
            self.for_copies(missing, write)
        else:
            write()
        self.scopes.close()

    def matrix_dot(self, stmt: MatrixDot) -> None:
        self.scopes.open(is_region=False)
        rows, *columns = (
            self.memory.line(load.source, load.indices, Type("i8", 16))
            for load in (stmt.rows, *stmt.columns)
        )
        dtypes = stmt.rows.dtype, stmt.columns[0].dtype
        for pair, right in enumerate(dot_products.column_pairs(self.asm, *columns)):
            at = (*stmt.line, index(4 * pair))
            type_ = Type(self.traits.element(stmt.sums.dtype), 4)
            total = self.memory.line(stmt.sums, at, type_)
            total = dot_products.matrix_dot(self.asm, rows, right, total, dtypes)
            self.memory.store_line(stmt.sums, at, total)
        self.scopes.close()

    def missing_lanes(self, target: object) -> list[int]:
        """Axes with a copy of `target` per lane that are in no LANE loop here: a uniform store
        fills all copies."""
        if not isinstance(target, Scratch):
            return []
        copies = self.plan.slots[target].copies
        return [
            axis
            for axis in range(3)
            if copies[axis] > 1 and self.memory.addresses.lane_index[axis] is None
        ]

    def for_copies(self, axes: list[int], write: Callable[[], None]) -> None:
        if not axes:
            write()
            return
        axis = axes[0]

        def body(lane: Value) -> None:
            self.memory.addresses.lane_index[axis] = lane
            self.scopes.open(is_region=True)
            self.for_copies(axes[1:], write)
            self.scopes.close()
            self.memory.addresses.lane_index[axis] = None

        self.counted(self.kernel.workgroup_size[axis], body)

    def branch(self, stmt: If) -> None:
        self.scopes.open(is_region=False)
        condition = self.expressions.condition(stmt.condition)
        self.scopes.close()
        assert condition is not None
        if condition.number is not None:
            self.scoped(stmt.then if condition.number else stmt.otherwise, is_region=True)
        elif condition.type.lanes:
            self.masked(condition, stmt.then)
            if stmt.otherwise:
                inverse = self.asm.op("xor", condition, integer(1, condition.type))
                self.masked(inverse, stmt.otherwise)
        else:
            self.branches(
                condition,
                lambda: self.scoped(stmt.then, is_region=True),
                (lambda: self.scoped(stmt.otherwise, is_region=True)) if stmt.otherwise else None,
            )

    def branches(
        self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None] | None
    ) -> None:
        taken, done = self.asm.block("then"), self.asm.block("done")
        other = self.asm.block("else") if otherwise else done
        self.asm.branch(condition, taken, other, _THEN_ODDS if otherwise else None)
        self.asm.enter(taken)
        then()
        self.asm.jump(done)
        if otherwise:
            self.asm.enter(other)
            otherwise()
            self.asm.jump(done)
        self.asm.enter(done)

    def masked(self, condition: Value, body: tuple[Stmt, ...]) -> None:
        """Runs `body` in the lanes where `condition` holds."""
        outer = self.expressions.mask
        self.expressions.mask = self.lanes.mask_and(outer, condition)
        # Values of pure expressions are right in every lane, so they outlive the mask.
        self.scoped(body, is_region=False)
        self.expressions.mask = outer

    # Loops.

    def loop(self, stmt: For) -> None:
        match stmt.kind:
            case LoopKind.WORKGROUP:
                argument = Value(f"%{'xyz'[stmt.axis]}", Type("i32"))
                index = self.asm.cast("zext", argument, self.lanes.index.element)
                self.scopes.open(is_region=False)
                self.scopes.bind(stmt.var, index, is_nonnegative=True, last=_last(stmt))
                self.body(stmt.body)
                self.scopes.close()
            case LoopKind.UNROLLED:
                self.unrolled(stmt)
            case LoopKind.VECTOR:
                self.vector(stmt)
            case LoopKind.LANE:
                self.lane_loop(stmt)
            case _:
                self.serial(stmt)

    def serial(self, stmt: For) -> None:
        self.counted(stmt.extent, lambda i: self.iteration(stmt, i, is_region=True))

    def iteration(self, stmt: For, index: Value | Affine, *, is_region: bool) -> None:
        self.scopes.open(is_region=is_region)
        # Lanes past the end may be masked: their indices are no iterations.
        last = _last(stmt) if isinstance(index, Value) else None
        self.scopes.bind(stmt.var, index, is_nonnegative=True, last=last)
        self.body(stmt.body)
        self.scopes.close()

    def counted(self, extent: Dim, body: Callable[[Value], None]) -> None:
        """A serial loop that runs `body(i)` for 0 <= i < extent."""
        asm, one = self.asm, self.lanes.constant(1)
        count = self.memory.addresses.dims.value(extent)
        if count.number == 1:
            body(self.lanes.constant(0))
            return
        head, done = asm.block("loop"), asm.block("done")
        if count.number is not None and count.number <= 0:
            return
        if count.number is None:
            ready = asm.block("enter")
            asm.branch(asm.icmp("sgt", count, self.lanes.constant(0)), ready, done)
            asm.enter(ready)
        before = asm.current
        asm.jump(head)
        asm.enter(head)
        index = Value(asm.fresh("i"), self.lanes.index)
        asm.emit_void("")
        body(index)
        following = asm.op("add nuw nsw", index, one)
        head.lines[0] = (
            f"{index.ref} = phi {index.type} [ 0, %{before.label} ], "
            f"[ {following.ref}, %{asm.current.label} ]"
        )
        # LLVM takes all loops for equally long ones, and would keep registers for the constants of
        # a short loop rather than for the sums of a long one beside it.
        again = (dims.estimate(extent, ITERATIONS) or ITERATIONS) - 1
        odds = max(0, min(again, 1 << 20)), 1
        asm.branch(asm.icmp("ne", following, count), head, done, odds)
        asm.enter(done)

    def unrolled(self, stmt: For) -> None:
        block = self.block_of(stmt)
        if block is not None:
            self.transposed(stmt, block)
            return
        for i in range(_constant_extent(stmt)):
            self.iteration(stmt, self.lanes.constant(i), is_region=False)

    def block_of(self, stmt: For) -> Block | None:
        """The block of transposed accesses that an unrolled loop forms; None if it forms none."""
        is_candidate = (
            not self.lanes.count
            and self.traits.has_vectors
            and len(stmt.body) == 1
            and isinstance(stmt.body[0], For)
            and stmt.body[0].kind is LoopKind.VECTOR
        )
        if not is_candidate:
            return None
        assert isinstance(stmt.body[0], For)
        if stmt not in self._blocks:
            self._blocks[stmt] = block_of(stmt, self.width_of(stmt.body[0]))
        return self._blocks[stmt]

    def transposed(self, stmt: For, block: Block) -> None:
        """Emits a transposed block, in pieces of its vector loop: transposed loads, all
        computation, then transposed stores, which write no element that another iteration loads."""
        inner, count = block.inner, _constant_extent(stmt)
        width = self.width_of(inner)
        for first in range(0, _constant_extent(inner), width):
            at = Affine(self.lanes.constant(first), self.lanes.constant(1))
            self.lanes.count = width
            self.in_iteration(stmt, 0, inner, at)
            loaded = {
                load: load_columns(self.memory, load, stmt.var, inner.var, count)
                for load in block.loads
            }
            self.scopes.close()
            results: dict[Store, list[Value]] = {each: [] for each in block.stores}
            is_plain = all(each in results for each in inner.body)
            for i in range(count):
                self.in_iteration(stmt, i, inner, at)
                for load, values in loaded.items():
                    self.scopes.assume(load, values[i])
                for each in inner.body:
                    if isinstance(each, Store) and each in results:
                        if i and is_plain and stmt.var not in free_vars(each.value):
                            results[each].append(results[each][0])
                            continue
                        results[each].append(self.lanes.vector(self.expressions.root(each.value)))
                    else:
                        self.body((each,))
                self.scopes.close()
            self.in_iteration(stmt, 0, inner, at)
            for each, values in results.items():
                store_columns(self.memory, each, stmt.var, values)
            self.scopes.close()
            self.lanes.count = 0

    def in_iteration(self, stmt: For, i: int, inner: For, at: Affine) -> None:
        """Opens a scope for lanes `at` of the loop `inner`, in iteration `i` of `stmt`."""
        self.scopes.open(is_region=False)
        self.scopes.bind(stmt.var, self.lanes.constant(i), is_nonnegative=True)
        self.scopes.bind(inner.var, at, is_nonnegative=True)

    def lane_loop(self, stmt: For) -> None:
        def body(index: Value) -> None:
            self.memory.addresses.lane_index[stmt.axis] = index
            self.iteration(stmt, index, is_region=True)
            self.memory.addresses.lane_index[stmt.axis] = None

        self.counted(_constant_extent(stmt), body)

    # Vector loops.

    def vector(self, stmt: For) -> None:
        extent = _constant_extent(stmt)
        is_spread = self.is_spread(stmt)
        if self.lanes.count or not self.traits.has_vectors or extent == 1:
            # Registers are named by constants, so a loop over them is spelled out.
            if is_spread or self.lanes.count:
                self.unrolled(stmt)
            else:
                self.serial(stmt)
            return
        whole = None if is_spread else self.all_guards(stmt)
        if whole is None:
            self.pieces(stmt, extent, is_spread)
            return
        condition, guards = whole

        def guarded_by_none() -> None:
            self.scopes.open(is_region=True)
            for guard in guards:
                self.scopes.assume(guard, integer(1, Type("i1")))
            self.pieces(stmt, extent, is_spread)
            self.scopes.close()

        self.branches(condition, guarded_by_none, lambda: self.serial(stmt))

    def is_spread(self, stmt: For) -> bool:
        """Whether the loop's variable indexes elements of REGISTER scratch."""
        if stmt not in self._spread:
            self._spread[stmt] = _indexes_registers(stmt, self.scopes)
        return self._spread[stmt]

    def width_of(self, stmt: For) -> int:
        """The lanes of a piece: one register's; the whole loop where another loop runs inside, as
        each piece would repeat it."""
        if stmt not in self._widths:
            has_loop = any(
                isinstance(s, For) and s.kind in (LoopKind.SERIAL, LoopKind.PARALLEL)
                for s in walk(stmt.body)
            )
            register = self.traits.group_bytes // _widest_bytes(stmt.body)
            extent = _constant_extent(stmt)
            if extent > register and self.packs(stmt.body):
                packed = min(quantising.PACKED * register, 1 << extent.bit_length() - 1)
                register = packed if packed > register else register
            self._widths[stmt] = extent if has_loop else min(extent, max(2, register))
        return self._widths[stmt]

    def packs(self, body: tuple[Stmt, ...]) -> bool:
        """Whether a loop body stores only quantised numbers, or bytes looked up by them, which fill
        whole byte registers.
        """

        def is_packed(e: Expr) -> bool:
            if isinstance(e, Load) and self.memory.is_table(e.source, e.indices):
                (index,) = e.indices
                return isinstance(index, Cast) and is_packed(index.a)
            return (
                isinstance(e, Cast)
                and quantising.packs(self.traits, e.dtype)
                and quantising.quantised(e) is not None
            )

        stored = [s for s in walk(body) if isinstance(s, Store)]
        return bool(stored) and all(is_packed(s.value) for s in stored)

    def pieces(self, stmt: For, extent: int, is_spread: bool) -> None:
        """Emits a loop in vectors of the machine's width, and its tail as a narrower vector."""
        width = self.width_of(stmt)
        count, rest = divmod(extent, width)
        if is_spread or count <= _MAX_UNROLLED_PIECES:
            for i in range(count):
                self.piece(stmt, self.lanes.constant(i * width), width, is_region=False)
        else:

            def body(i: Value) -> None:
                first = self.asm.op("mul", i, self.lanes.constant(width))
                self.piece(stmt, first, width, is_region=True)

            self.counted(count, body)
        if rest:
            self.piece(stmt, self.lanes.constant(count * width), rest, is_region=False)

    def piece(self, stmt: For, first: Value, width: int, *, is_region: bool) -> None:
        if width == 1:
            self.iteration(stmt, first, is_region=is_region)
            return
        self.lanes.count = width
        self.iteration(stmt, Affine(first, self.lanes.constant(1)), is_region=is_region)
        self.lanes.count = 0
        self.expressions.mask = None

    def all_guards(self, stmt: For) -> tuple[Value, list[Expr]] | None:
        """(scalar that is true if the cheap guards hold for all lanes, these guards), where masks
        are expensive; else None.
        """
        if self.traits.has_masked(4):
            return None
        self.scopes.open(is_region=False)
        self.lanes.count = _constant_extent(stmt)
        self.scopes.bind(
            stmt.var, Affine(self.lanes.constant(0), self.lanes.constant(1)), is_nonnegative=True
        )
        known = self.scopes.known
        total: Value | None = None
        found: list[Expr] = []
        for guard in _guards(stmt.body):
            facts = self.scopes.facts(guard)
            if (
                facts.has_load
                or facts.needs_expansion
                or stmt.var not in facts.variables
                or (not all(v in known for v in facts.variables))
            ):
                continue
            mask = self.expressions.evaluate(guard)
            assert isinstance(mask, Value)
            if mask.type.lanes and mask in self.lanes.all_of:
                total = self.lanes.mask_and(total, self.lanes.all_of[mask])
                found.append(guard)
        self.lanes.count = 0
        self.scopes.close()
        return None if total is None else (total, found)


def _last(stmt: For) -> int | None:
    """The loop's last index, if constant."""
    return stmt.extent - 1 if isinstance(stmt.extent, int) else None


def _constant_extent(stmt: For) -> int:
    if not isinstance(stmt.extent, int):
        raise InternalError(f"{stmt.kind.value} loop over {stmt.var.name} has extent {stmt.extent}")
    return stmt.extent


def _guards(body: tuple[Stmt, ...]) -> list[Expr]:
    """The conditions in `body` that keep lanes from accessing memory, once each, in order."""
    found: dict[Expr, None] = {}
    for stmt in walk(body):
        if isinstance(stmt, If):
            found[stmt.condition] = None
        if isinstance(stmt, Store) and stmt.guard is not None:
            found[stmt.guard] = None
        for load in loads(_roots(stmt)):
            if load.guard is not None:
                found[load.guard] = None
    return list(found)


def _roots(stmt: Stmt) -> list[Expr]:
    match stmt:
        case Store():
            return [*stmt.indices, stmt.value, *([stmt.guard] if stmt.guard is not None else [])]
        case Let():
            return [stmt.value]
        case If():
            return [stmt.condition]
        case MatrixDot():
            at = (*stmt.line, index(0))
            return [stmt.rows, *stmt.columns, Load(stmt.sums, at, stmt.sums.dtype)]
    return []


def _indexes_registers(stmt: For, scopes: Scopes) -> bool:
    """Whether the loop's variable indexes elements of REGISTER scratch."""
    for inner in walk(stmt.body):
        accesses = [(x.source, x.indices) for x in loads(_roots(inner))]
        if isinstance(inner, Store):
            accesses.append((inner.target, inner.indices))
        for memory, indices in accesses:
            if (
                isinstance(memory, Scratch)
                and memory.space is Space.REGISTER
                and any(stmt.var in scopes.facts(i).variables for i in indices)
            ):
                return True
    return False


def _widest_bytes(body: tuple[Stmt, ...]) -> int:
    """The size of the widest element that `body` computes with, apart from indices."""
    widest = 1
    seen: set[Expr] = set()
    for stmt in walk(body):
        stack = _roots(stmt)
        if isinstance(stmt, Store):
            widest = max(widest, stmt.target.dtype.bytes)
        while stack:
            e = stack.pop()
            if e in seen:
                continue
            seen.add(e)
            if e.dtype is not DType.INDEX and isinstance(e, Load | Binary | Cast):
                widest = max(widest, e.dtype.bytes)
            stack.extend(children(e))
    return widest
