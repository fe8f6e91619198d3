"""Decides, before anything is emitted, which loops are unrolled and where scratch lives.

Owns those two decisions and nothing else. Unrolling buys constant indices, which let REGISTER
scratch become SSA values, and costs words, of which drivers make worse than linear time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from math import prod

from aot.backends.vulkan.limits import LimitError
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.dims import modulo
from aot.ir.expr import Binary, Const, Expr, Fma, Load, Var, children, coefficient, free_vars
from aot.ir.schedule import QUAD
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Buffer,
    BufferClass,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Scratch,
    Space,
    Stmt,
    Store,
    walk,
)
from aot.target.model import GpuGeometry

# Beyond about 2.6 k words drivers' compile time grows worse than linearly, and an instruction is
# about five words: a nest that would unroll to more than this many instructions stays a loop.
MAX_UNROLLED_INSTRUCTIONS = 1200
SMALL_EXTENT = 4
# Bytes at whose multiples variables in shared memory begin at most.
SHARED_ALIGNMENT = 16

# How many instructions depend on which loops' variables, about.
Instructions = Counter[frozenset[Var]]
EVERY: frozenset[Var] = frozenset((Var("every"),))  # on those of all loops around


@dataclass(frozen=True)
class ScratchPlace:
    """How a scratch is kept.

    Attributes:
        kept: the dims that are left; LANE dims of REGISTER scratch are dropped, because every
            invocation has its own slice.
        is_promoted: whether its elements are SSA values instead of memory.
    """

    kept: tuple[int, ...]
    is_promoted: bool

    def shape(self, scratch: Scratch) -> tuple[int, ...]:
        return tuple(scratch.shape[d] for d in self.kept)


@dataclass(frozen=True)
class SumLoop:
    """An unrolled loop whose only statement stores to neighbours in promoted or PRIVATE scratch."""

    target: Scratch
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Placement:
    """The decisions for one kernel.

    Attributes:
        unrolled: loops that are written out.
        kept_loops: loops that drivers should not write out either.
        scratch: where each scratch is.
        in_quads: buffers whose elements are loaded four at a time where that is possible.
        sums: loops that may be vector instructions.
        vectors: scratch whose elements are kept four to a value, or to an element in memory,
            because of those, or because lanes store or load so many at once in shared memory, or
            matrices are loaded from there.
    """

    unrolled: frozenset[For]
    kept_loops: frozenset[For]
    scratch: dict[Scratch, ScratchPlace]
    in_quads: frozenset[Buffer]
    sums: dict[For, SumLoop]
    vectors: frozenset[Scratch]

    def values(self, scratch: Scratch) -> int:
        """SSA values that promoted scratch takes."""
        return self.elements(scratch) // (QUAD if scratch in self.vectors else 1)

    def elements(self, scratch: Scratch) -> int:
        """Elements that are kept of `scratch`."""
        return prod(self.scratch[scratch].shape(scratch))


_Indices = dict[Scratch, list[tuple[Expr, ...]]]


def written_out(kernel: Kernel) -> set[For]:
    """The loops of a kernel that its shader does not have."""
    return _unrolled(kernel, *_uses(kernel))


def _uses(kernel: Kernel) -> tuple[_Indices, dict[Scratch, tuple[int, ...]], dict[Var, Expr]]:
    """How scratch is accessed, the dims that are kept of it, and what variables are."""
    accesses, lane_axes = _scratch_accesses(kernel), _lane_axes(kernel)
    kept = {s: _kept_dims(s, accesses[s], lane_axes) for s in kernel.scratch}
    return accesses, kept, {s.var: s.value for s in walk(kernel.body) if isinstance(s, Let)}


def _unrolled(
    kernel: Kernel,
    accesses: _Indices,
    kept: dict[Scratch, tuple[int, ...]],
    lets: dict[Var, Expr],
) -> set[For]:
    unroller = _Unroller(_register_vars(kept, accesses, lets))
    unroller.body(kernel.body)
    return unroller.unrolled


def place(kernel: Kernel, gpu: GpuGeometry, computed: Container[DType] = frozenset()) -> Placement:
    """Decides for `kernel`, and checks what it needs against the target's geometry; narrow dtypes
    that are `computed` are as narrow in shared memory."""
    accesses, kept, lets = _uses(kernel)
    unrolled = _unrolled(kernel, accesses, kept, lets)
    constant_vars = {loop.var for loop in unrolled}
    scratch = {
        s: ScratchPlace(
            kept[s],
            s.space is Space.REGISTER
            and all(
                _is_constant(indices[d], constant_vars, lets)
                for indices in accesses[s]
                for d in kept[s]
            ),
        )
        for s in kernel.scratch
    }
    _check_shared(kernel, gpu, computed)
    sums = _find_sums(unrolled, scratch)
    quads = frozenset(_read_in_quads(unrolled))
    added = {s.target for s in sums.values() if isinstance(s.value, Fma)}
    taken = ((s.target, s.value) for s in sums.values() if isinstance(s.value, Load))
    kept_so = added | {target for target, load in taken if load.source in added}
    sums = {loop: s for loop, s in sums.items() if s.target in kept_so}
    return Placement(
        frozenset(unrolled),
        frozenset(_kept_loops(kernel, accesses, sums)),
        *(scratch, quads, sums),
        frozenset(kept_so | _shared_quads(accesses, constant_vars, lets) | _multiplied(kernel)),
    )


def _shared_quads(
    accesses: _Indices, constant_vars: set[Var], lets: dict[Var, Expr]
) -> set[Scratch]:
    """Shared scratch of f32 that can be stored as vec4s: some access has a constant index within
    the vec4.
    """
    return {
        scratch
        for scratch, sites in accesses.items()
        if scratch.space is Space.WORKGROUP
        and scratch.dtype is DType.F32
        and scratch.shape[-1] == QUAD
        and any(_is_constant(indices[-1], constant_vars, lets) for indices in sites)
    }


def _multiplied(kernel: Kernel) -> set[Scratch]:
    """Shared scratch that matrices are loaded from: narrow elements are stored four at a time."""
    products = [s for s in walk(kernel.body) if isinstance(s, MatrixProduct)]
    sources = {matrix.source for s in products for matrix in (s.left, s.right)}
    return {
        s
        for s in sources
        if isinstance(s, Scratch) and s.dtype.bits < 32 and s.shape[-1] % QUAD == 0
    }


def _kept_loops(
    kernel: Kernel, accesses: dict[Scratch, list[tuple[Expr, ...]]], sums: dict[For, SumLoop]
) -> Iterator[For]:
    """The loops that drivers should not unroll, so that shaders stay short: loops around sums,
    loops that index PRIVATE scratch, and loops with stores in nested branches, such as those over
    the levels of a heap.

    Drivers that unroll them all the same take a third longer to compile it, and run it no faster;
    a heap takes eight times as long to compile then, and twice to run.
    """
    private = [i for s, a in accesses.items() if s.space is Space.PRIVATE for i in a]
    wanted = {v for indices in private for index in indices for v in free_vars(index)}
    for stmt in walk(kernel.body):
        if isinstance(stmt, For) and (
            stmt.var in wanted
            or any(inner in sums for inner in _loops_in(stmt.body))
            or _branches_to_store(stmt.body) > 1
        ):
            yield stmt


def _branches_to_store(body: tuple[Stmt, ...]) -> int:
    """The deepest nesting of branches around a store to memory; -1 without a store."""
    most = -1
    for stmt in body:
        match stmt:
            case Store() if isinstance(stmt.target, Buffer):
                most = max(most, 0)
            case If():
                inner = _branches_to_store((*stmt.then, *stmt.otherwise))
                most = max(most, inner + 1 if inner >= 0 else -1)
            case For():
                most = max(most, _branches_to_store(stmt.body))
    return most


def _loops_in(body: tuple[Stmt, ...]) -> Iterator[For]:
    return (s for s in walk(body) if isinstance(s, For))


def _find_sums(unrolled: set[For], places: dict[Scratch, ScratchPlace]) -> dict[For, SumLoop]:
    found: dict[For, SumLoop] = {}
    for loop in unrolled:
        first = _only_store(loop)
        if first is None:
            continue
        target = first.target
        assert isinstance(target, Scratch)
        place = places[target]
        is_own = place.is_promoted or target.space is Space.PRIVATE
        if not is_own or not place.kept:
            continue
        last = place.kept[-1]
        rest = [first.indices[d] for d in place.kept[:-1]]
        is_along = first.indices[last] is loop.var and target.shape[last] % QUAD == 0
        is_whole = is_along and loop.extent == target.shape[last]
        if is_whole and not any(loop.var in free_vars(i) for i in rest):
            found[loop] = SumLoop(target, first.indices, first.value)
    return found


def _only_store(loop: For) -> Store | None:
    """The statement of a loop that does nothing else than to store f32 in scratch."""
    (first, *others) = loop.body
    if others or not isinstance(first, Store) or first.guard is not None:
        return None
    is_scratch = isinstance(first.target, Scratch) and first.target.dtype is DType.F32
    return first if is_scratch else None


def _read_in_quads(unrolled: set[For]) -> Iterator[Buffer]:
    """Buffers that are only read and whose contiguous elements an unrolled loop reads."""
    for loop in unrolled:
        if not isinstance(loop.extent, int) or loop.extent % QUAD:
            continue
        for stmt in walk(loop.body):
            for node in nodes(roots(stmt)):
                if not isinstance(node, Load) or not isinstance(node.source, Buffer):
                    continue
                source = node.source
                if _has_quads(source) and coefficient(node.indices[0], loop.var) == 1:
                    yield source


def _has_quads(buffer: Buffer) -> bool:
    """Whether elements of a buffer may be loaded four at a time, none of them written meanwhile."""
    if buffer.is_written or buffer.dtype.bytes > 4 or buffer.strides != (1,):
        return False
    if buffer.binding is BufferClass.CONSTANTS:
        return True
    is_aligned = buffer.alignment % (QUAD * buffer.dtype.bytes) == 0
    return is_aligned and modulo(buffer.shape[0], QUAD) == 0


def roots(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates."""
    match stmt:
        case Let() | Combine():
            return (stmt.value,)
        case Store():
            guard = () if stmt.guard is None else (stmt.guard,)
            return (*stmt.indices, stmt.value, *guard)
        case If():
            return (stmt.condition,)
        case MatrixZero():
            return stmt.place
        case MatrixProduct():
            return (*stmt.place, *stmt.left.indices, *stmt.right.indices)
        case MatrixStore():
            return (*stmt.place, *stmt.target.indices)
        case _:
            return ()


def nodes(expressions: tuple[Expr, ...]) -> Iterator[Expr]:
    """Every node under `expressions`, once each."""
    seen: set[Expr] = set()
    stack = list(expressions)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(children(node))


def _scratch_accesses(kernel: Kernel) -> dict[Scratch, list[tuple[Expr, ...]]]:
    """The index tuples of every load and store of each scratch."""
    found: dict[Scratch, list[tuple[Expr, ...]]] = {s: [] for s in kernel.scratch}
    for stmt in walk(kernel.body):
        sites: list[tuple[object, tuple[Expr, ...]]] = [
            (n.source, n.indices) for n in nodes(roots(stmt)) if isinstance(n, Load)
        ]
        if isinstance(stmt, Store):
            sites.append((stmt.target, stmt.indices))
        for target, indices in sites:
            if isinstance(target, Scratch):
                if target not in found:
                    raise InternalError(
                        f"kernel {kernel.name}: scratch {target.name} is not among the kernel's"
                    )
                found[target].append(indices)
    return found


def _lane_axes(kernel: Kernel) -> dict[Var, int]:
    """The axis of every LANE variable; checks that an axis has one extent."""
    axes: dict[Var, int] = {}
    sizes = kernel.workgroup_size
    for stmt in walk(kernel.body):
        if isinstance(stmt, For) and stmt.kind is LoopKind.LANE:
            if stmt.extent != sizes[stmt.axis]:
                raise InternalError(
                    f"kernel {kernel.name}: lane loops on axis {stmt.axis} have extents "
                    f"{stmt.extent} and {sizes[stmt.axis]}; all must be equal"
                )
            axes[stmt.var] = stmt.axis
        elif isinstance(stmt, Combine):
            axes[stmt.lane] = 0
    return axes


def _kept_dims(
    scratch: Scratch, accesses: list[tuple[Expr, ...]], lane_axes: dict[Var, int]
) -> tuple[int, ...]:
    if scratch.space is Space.WORKGROUP:
        return tuple(range(len(scratch.shape)))
    dropped = set()
    for dim in range(len(scratch.shape)):
        axes = {
            lane_axes.get(i[dim], -1) if isinstance(i[dim], Var) else -1  # type: ignore[arg-type]
            for i in accesses
        }
        if len(axes) == 1 and -1 not in axes:
            dropped.add(dim)
    return tuple(d for d in range(len(scratch.shape)) if d not in dropped)


def _register_vars(
    kept: dict[Scratch, tuple[int, ...]],
    accesses: dict[Scratch, list[tuple[Expr, ...]]],
    lets: dict[Var, Expr],
) -> set[Var]:
    """Variables that REGISTER scratch is indexed by, straight or by way of Lets."""
    found: set[Var] = set()
    pending = [
        indices[d]
        for s in kept
        if s.space is Space.REGISTER
        for indices in accesses[s]
        for d in kept[s]
    ]
    while pending:
        for node in nodes((pending.pop(),)):
            if isinstance(node, Var) and node not in found:
                found.add(node)
                if node in lets:
                    pending.append(lets[node])
    return found


class _Unroller:
    """Chooses the loops that are unrolled, from the innermost outwards."""

    def __init__(self, wanted: set[Var]) -> None:
        self.wanted = wanted
        self.unrolled: set[For] = set()
        self._depends: dict[Expr, frozenset[Var]] = {}
        self._lets: dict[Var, frozenset[Var]] = {}

    def body(self, body: tuple[Stmt, ...]) -> Instructions:
        """Chooses within `body`; gives the instructions that it takes, about."""
        total: Instructions = Counter()
        for stmt in body:
            for node in nodes(roots(stmt)):
                total[self.depends(node)] += 1
            match stmt:
                case Let():
                    self._lets[stmt.var] = self.depends(stmt.value)
                case Store() | Combine() | MatrixZero() | MatrixProduct() | MatrixStore():
                    total[EVERY] += 1
                case If():
                    total[EVERY] += 4
                    total += self.body(stmt.then) + self.body(stmt.otherwise)
                case For():
                    total += self.loop(stmt)
        return total

    def loop(self, loop: For) -> Instructions:
        inner = self.body(loop.body)
        repeated = Counter({k: n for k, n in inner.items() if loop.var in k or k == EVERY})
        once = inner - repeated
        if not self._may_be_unrolled(loop):
            return once + Counter({EVERY: 8 + repeated.total()})
        whole: Instructions = Counter()
        for key, count in repeated.items():
            left = EVERY if key == EVERY else key - {loop.var}
            whole[left] += max(1, count * loop.count // _shared_by(loop))
        whole += once
        if loop.count > 1 and whole.total() > MAX_UNROLLED_INSTRUCTIONS:
            return once + Counter({EVERY: 8 + repeated.total()})
        self.unrolled.add(loop)
        return whole

    def depends(self, node: Expr) -> frozenset[Var]:
        """The loops' variables that an instruction differs by; where it differs by none it is done
        once."""
        known = self._depends.get(node)
        if known is None:
            if isinstance(node, Var):
                known = self._lets.get(node, frozenset((node,)))
            else:
                known = frozenset().union(*map(self.depends, children(node)))
            self._depends[node] = known
        return known

    def _may_be_unrolled(self, loop: For) -> bool:
        if loop.kind in (LoopKind.WORKGROUP, LoopKind.LANE) or not isinstance(loop.extent, int):
            return False
        if loop.extent <= 1 or loop.kind is LoopKind.UNROLLED:
            return True
        is_small = loop.extent <= SMALL_EXTENT or loop.var in self.wanted
        return loop.kind is LoopKind.VECTOR and is_small


def _shared_by(loop: For) -> int:
    """How many iterations of an unrolled loop an instruction serves: sums become vectors of QUAD,
    and the other half of them are addresses that their neighbours have too."""
    store = _only_store(loop)
    is_sum = store is not None and isinstance(store.value, Fma)
    return 2 * QUAD if is_sum and loop.count % QUAD == 0 else 1


def _is_constant(index: Expr, constant_vars: set[Var], lets: dict[Var, Expr]) -> bool:
    """Whether `index` is a number once the loops over `constant_vars` are unrolled."""
    for node in nodes((index,)):
        match node:
            case Const() | Binary():
                continue
            case Var():
                if node in constant_vars:
                    continue
                if node in lets and _is_constant(lets[node], constant_vars, lets):
                    continue
                return False
            case _:
                return False
    return True


def _check_shared(kernel: Kernel, gpu: GpuGeometry, computed: Container[DType]) -> None:
    needed = shared_bytes(kernel, computed)
    if needed > gpu.max_shared_bytes:
        raise LimitError(
            kernel.name,
            f"workgroup scratch takes {needed} bytes, more than the target's "
            f"{gpu.max_shared_bytes}",
        )


def shared_bytes(kernel: Kernel, computed: Container[DType] = frozenset()) -> int:
    """Bytes of Workgroup memory; an element takes a word, or less of a narrow dtype that is
    `computed`."""
    shared = [s for s in kernel.scratch if s.space is Space.WORKGROUP]
    sizes = (prod(s.shape) * (s.dtype.bytes if s.dtype in computed else 4) for s in shared)
    return sum(-(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT for size in sizes)
