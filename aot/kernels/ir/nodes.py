"""Kernel IR: a tree of loop nests over buffers and scratch, shared by both backends.

Owns the statements and their verifier; expressions are `aot.ir.expr`. Says what is computed and in
which loops, never with which instructions: a backend decides how a VECTOR or LANE loop runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import Union

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import LEAST
from aot.ir.dims import Dim
from aot.ir.expr import Dot, Expr, Load, Param, Var
from aot.ir.types import DType
from aot.target.model import MatrixShape


class BufferClass(Enum):
    """The class of a buffer: which of a dispatch's four bindings it is. Values are those of
    module.fbs."""

    CONSTANTS = 0
    ARENA = 1
    INPUTS = 2
    OUTPUTS = 3


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor in one of the four buffers.

    Element (i, j, ...) is at byte `offset + dtype.bytes * (i*strides[0] + j*strides[1] + ...)`
    of the class's buffer. Dims' symbols are INDEX parameters. `offset` is a multiple of `alignment`
    bytes, or of the element's size where that is more. Buffers of class CONSTANTS or INPUTS are
    never written, and nothing that is written overlaps them; nor operands with an alignment. Other
    arena and output buffers may overlap each other only where the kernel was built for it (an
    element is read before the same iteration writes it). A buffer with a `class_param` is in the
    buffer of the class whose number that is, and as free as one of the arena, its `binding`; a
    CPU's only. What is stored to a buffer that `is_streamed` no cache holds until it is read, and
    the kernel doesn't read it: whole lines may go past the caches.
    """

    name: str
    dtype: DType
    binding: BufferClass
    offset: Param
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    is_written: bool = False
    alignment: int = 1
    class_param: Param | None = None
    is_streamed: bool = False

    @property
    def least_elements(self) -> int:
        """The number of elements when each dynamic extent is 1."""
        return dims.estimate(dims.product(self.shape), LEAST) or 0


class Space(Enum):
    """The memory space of scratch: what shares it, and where it is.

    REGISTER: private to an invocation. It is small, and its indices become constants once UNROLLED
        loops are unrolled and VECTOR or LANE loops are spread, so that backends can keep it in
        registers. Each lane has its own. The values that a PARALLEL iteration stores are private to
        it; an element that several iterations store is undefined after the loop. VECTOR iterations
        share theirs. Elements stored under LANE loops of an axis are loaded under such loops too.
    PRIVATE: private to a lane, with any indices. On a CPU it is on the stack, or in registers where
        lanes select their elements from two vectors (`Target.picks_lanes`).
    WORKGROUP: shared by the lanes of a workgroup.
    MATRIX: matrices that are distributed over the lanes of a subgroup, with rows and columns as the
        last dims; each subgroup has its own. The other indices become constants, as for REGISTER.
        Only matrix statements access it.
    """

    REGISTER = "register"
    PRIVATE = "private"
    WORKGROUP = "workgroup"
    MATRIX = "matrix"


@dataclass(frozen=True, eq=False)
class Scratch:
    """Memory of one workgroup (or invocation), dense row-major, undefined until stored."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    space: Space


class LoopKind(Enum):
    """The kind of a loop: whether its iterations are independent, and what executes them.

    SERIAL: in order; carries values through scratch, reductions among them.
    PARALLEL: iterations are independent, in any order.
    UNROLLED: constant extent, in order, fully unrolled.
    VECTOR: constant extent, iterations are independent (reductions over lanes are written out as
        scratch per lane); SIMD on a CPU, unrolled or serial per invocation on a GPU.
    WORKGROUP: the grid: only at the top of the tree, each axis 0, 1, 2 at most once.
    LANE: lanes of a workgroup, constant extent; every LANE loop on one axis of a kernel has the
        same extent; no LANE loop inside another on the same axis. On a CPU a serial (or SIMD) loop.
        Everything outside LANE loops is uniform: it stores to REGISTER scratch only; in a kernel
        with lanes along several axes, other stores stand inside LANE loops of each of them.
    """

    SERIAL = "serial"
    PARALLEL = "parallel"
    UNROLLED = "unrolled"
    VECTOR = "vector"
    WORKGROUP = "workgroup"
    LANE = "lane"


@dataclass(frozen=True, eq=False)
class For:
    """`for var in range(extent)`; axis is 0, 1, 2 for WORKGROUP and LANE loops."""

    var: Var
    extent: Dim
    kind: LoopKind
    body: tuple[Stmt, ...]
    axis: int = 0

    @property
    def count(self) -> int:
        """The loop's extent as a number; every UNROLLED, VECTOR and LANE loop has one."""
        return int(self.extent)


@dataclass(frozen=True, eq=False)
class Let:
    """Names a value for the statements after it in the same body."""

    var: Var
    value: Expr


@dataclass(frozen=True, eq=False)
class Store:
    """Writes an element of a Buffer or Scratch where `guard` holds."""

    target: Buffer | Scratch
    indices: tuple[Expr, ...]
    value: Expr
    guard: Expr | None = None


@dataclass(frozen=True, eq=False)
class If:
    """Statements under a condition; inside VECTOR and LANE loops it may differ per lane.

    Where there are others for when it doesn't hold, a CPU's registers are given to `then` first.
    """

    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, eq=False)
class Barrier:
    """All lanes' WORKGROUP scratch stores before it are seen by all lanes after it.

    Stands outside LANE, VECTOR and PARALLEL loops, and so outside non-uniform conditions. Accesses
    of buffers it orders with `orders_buffers` only: else what a lane writes there no other lane of
    the workgroup reads.
    """

    orders_buffers: bool = False


@dataclass(frozen=True, eq=False)
class Combine:
    """Combines the lanes' values of `value` into one, and names the result for the statements after
    it.

    Stands where a Barrier may, in kernels whose lanes are along axis 0 alone, on targets with
    subgroup operations.

    Attributes:
        op: "add", "mul", "max" or "min", in any order.
        lane: a lane's number, in `value`.
        extent: how many lanes there are.
        shared: WORKGROUP scratch with an element a lane, for this statement alone.
    """

    result: Var
    op: str
    lane: Var
    extent: int
    value: Expr
    shared: Scratch


@dataclass(frozen=True, eq=False)
class Prefetch:
    """A hint that an element of a Buffer will soon be read, or stored if the Buffer is written. It
    changes no value, and its index may be out of bounds. It is outside VECTOR and LANE loops."""

    source: Buffer
    index: Expr


@dataclass(frozen=True, eq=False)
class MatrixDot:
    """A small matrix product: adds products of words of two rows and four columns to eight sums.
    Element `4 * p + 2 * i + j` of a line of `sums` is the sum of row i and column `2 * p + j`.

    Stands where a Prefetch may; on targets that multiply matrices of these words' parts.

    Attributes:
        sums: REGISTER scratch of i32, or of f32 for bf16, whose lines have 8 elements.
        line: the indices of one of them.
        rows: the first of four words of a source that follow each other: two of each row.
        columns: of each half of the terms, the first of four words that follow each other: one of
            each column.
    """

    sums: Scratch
    line: tuple[Expr, ...]
    rows: Load
    columns: tuple[Load, Load]

    def meaning(self) -> tuple[Store, ...]:
        """The same product as stores of scalar expressions, one per sum, in order."""
        stores: list[Store] = []
        for number in range(8):
            pair, row, column = number // 4, number // 2 % 2, number % 2
            at = (*self.line, expr.index(number))
            total: Expr = Load(self.sums, at, self.sums.dtype)
            for half, words in enumerate(self.columns):
                left = _word_after(self.rows, 2 * row + half)
                right = _word_after(words, 2 * pair + column)
                total = Dot(left, right, total, self.sums.dtype)
            stores.append(Store(self.sums, at, total))
        return tuple(stores)


def _word_after(first: Load, number: int) -> Load:
    """The load of the word at offset `number`, in words, after the one that `first` loads."""
    *outer, last = first.indices
    step = first.dtype.parts // first.source.dtype.parts
    last = expr.add(last, expr.index(step * number))
    return replace(first, indices=(*outer, last))


# Matrices that the lanes of a subgroup hold together. In a kernel with such statements lanes along
# axis 0 are those of a subgroup, which is as large, and axis 1 counts the subgroups. They stand
# inside a LANE loop of axis 1 and outside of those of axis 0, of VECTOR and of PARALLEL loops; on
# targets that list such matrices.


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix in a buffer of one dim, or in WORKGROUP scratch along its last two dims.

    Attributes:
        indices: of its first element.
        step: elements from a row, whose own lie side by side, to the next one.
        is_transposed: whether it is columns that lie so, not rows.
    """

    source: Buffer | Scratch
    indices: tuple[Expr, ...]
    step: int
    is_transposed: bool = False

    def at(self, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """Indices of an element of the matrix in its buffer or scratch."""
        if self.is_transposed:
            row, column = column, row
        if isinstance(self.source, Buffer):
            (first,) = self.indices
            return (expr.add(first, expr.add(expr.mul(row, expr.index(self.step)), column)),)
        *outer, i, j = self.indices
        return (*outer, expr.add(i, row), expr.add(j, column))

    def element(self, row: Expr, column: Expr) -> Load:
        return Load(self.source, self.at(row, column), self.source.dtype)


@dataclass(frozen=True, eq=False)
class MatrixZero:
    """Fills the matrix `place` of MATRIX scratch with zeros."""

    sums: Scratch
    place: tuple[Expr, ...]

    def meaning(self) -> Stmt:
        zero = expr.const(0, self.sums.dtype)
        return _each(self.sums, lambda i, j: Store(self.sums, (*self.place, i, j), zero))


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """Adds the product of two matrices to the matrix `place` of MATRIX scratch; terms are added in
    any order.

    Attributes:
        terms: columns of the left one, and rows of the right one.
    """

    sums: Scratch
    place: tuple[Expr, ...]
    terms: int
    left: Matrix
    right: Matrix

    @property
    def shape(self) -> MatrixShape:
        """The matrix shape and dtypes that a target must support to run this product."""
        left, right = self.left.source.dtype, self.right.source.dtype
        *_, m, n = self.sums.shape
        return MatrixShape(m, n, self.terms, left, right, self.sums.dtype)

    def meaning(self) -> Stmt:
        sums, k = self.sums, Var("k", DType.INDEX)

        def add(i: Expr, j: Expr) -> Stmt:
            at = (*self.place, i, j)
            left, right = self.left.element(i, k), self.right.element(k, j)
            product = expr.mul(expr.cast(left, sums.dtype), expr.cast(right, sums.dtype))
            return Store(sums, at, expr.add(Load(sums, at, sums.dtype), product))

        return For(k, self.terms, LoopKind.SERIAL, (_each(sums, add),))


@dataclass(frozen=True, eq=False)
class MatrixStore:
    """Stores the matrix `place` of MATRIX scratch to memory."""

    sums: Scratch
    place: tuple[Expr, ...]
    target: Matrix

    def meaning(self) -> Stmt:
        def store(i: Expr, j: Expr) -> Stmt:
            value = Load(self.sums, (*self.place, i, j), self.sums.dtype)
            return Store(self.target.source, self.target.at(i, j), value)

        return _each(self.sums, store)


def _each(sums: Scratch, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """Two nested loops that run `body` for each element of a matrix."""
    *_, rows, columns = sums.shape
    i, j = Var("i", DType.INDEX), Var("j", DType.INDEX)
    inner = For(j, columns, LoopKind.VECTOR, (body(i, j),))
    return For(i, rows, LoopKind.VECTOR, (inner,))


COMBINE_OPS = frozenset({"add", "mul", "max", "min"})

MatrixStmt = MatrixZero | MatrixProduct | MatrixStore
Stmt = Union[For, Let, Store, If, Barrier, Combine, Prefetch, MatrixDot, MatrixStmt]


@dataclass(frozen=True, eq=False)
class Kernel:
    """The code of one executable: parameters, memory and loops.

    Attributes:
        name: an identifier, for people.
        params: the parameter block, word by word: buffers' byte offsets, dims, scalars.
        buffers: at most one per operand and result; several may share a class.
        scratch: with REGISTER and WORKGROUP space.
        body: WORKGROUP loops outermost (perfectly nested, none is legal: a grid of one).
        rules: who built its loop nests, for people.
    """

    name: str
    params: tuple[Param, ...]
    buffers: tuple[Buffer, ...]
    scratch: tuple[Scratch, ...]
    body: tuple[Stmt, ...]
    rules: tuple[str, ...] = ()

    @property
    def grid(self) -> tuple[Dim, Dim, Dim]:
        """Workgroups along x, y, z, as dims over the INDEX parameters."""
        extents: list[Dim] = [1, 1, 1]
        body = self.body
        while len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.WORKGROUP:
            extents[body[0].axis] = body[0].extent
            body = body[0].body
        return extents[0], extents[1], extents[2]

    @property
    def workgroup_size(self) -> tuple[int, int, int]:
        """The number of lanes along x, y and z; 1 along an axis without LANE loops."""
        sizes = [1, 1, 1]
        for stmt in walk(self.body):
            if isinstance(stmt, For) and stmt.kind is LoopKind.LANE:
                sizes[stmt.axis] = stmt.count
        return sizes[0], sizes[1], sizes[2]


def holds_matrices(kernel: Kernel) -> bool:
    """Whether the kernel has matrix products: lanes along axis 0 then form one subgroup."""
    return any(isinstance(s, MatrixProduct) for s in walk(kernel.body))


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements in pre-order: an outer statement before those inside it."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, For):
            yield from walk(stmt.body)
        elif isinstance(stmt, If):
            yield from walk(stmt.then)
            yield from walk(stmt.otherwise)


def expressions_of(stmt: Stmt) -> tuple[Expr, ...]:
    """The root expressions of a statement; none for a matrix statement, whose expressions are those
    of its scalar meaning."""
    match stmt:
        case Let() | Combine():
            return (stmt.value,)
        case If():
            return (stmt.condition,)
        case Store():
            guard = () if stmt.guard is None else (stmt.guard,)
            return (*stmt.indices, stmt.value, *guard)
        case Prefetch():
            return (stmt.index,)
    return ()


@dataclass
class KernelBuilder:
    """Collects parameters, buffers and scratch while a lowering writes the tree.

    Buffers' offsets come first in the parameter block, in the order of `buffer` calls; then dims'
    symbols, then scalars.
    """

    name: str
    buffers: list[Buffer] = field(default_factory=list)
    scratches: list[Scratch] = field(default_factory=list)
    dim_params: dict[str, Param] = field(default_factory=dict)
    scalar_params: list[Param] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        """Returns `name` if it is unused, else the first unused of `name_1`, `name_2`, ..."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        if count == 0:
            return name
        made = f"{name}_{count}"
        return self.unique(name) if made in self._names else self.unique(made)

    def var(self, name: str, dtype: DType = DType.INDEX) -> Var:
        return Var(self.unique(name), dtype)

    def buffer(
        self,
        name: str,
        dtype: DType,
        binding: BufferClass,
        shape: tuple[Dim, ...],
        strides: tuple[Dim, ...],
        *,
        is_written: bool = False,
        alignment: int = 1,
        class_param: Param | None = None,
        is_streamed: bool = False,
    ) -> Buffer:
        name = self.unique(name)
        offset = Param(f"{name}_offset", DType.INDEX)
        placed = (binding, offset, shape, strides, is_written, alignment, class_param)
        made = Buffer(name, dtype, *placed, is_streamed)
        self.buffers.append(made)
        return made

    def scratch(
        self, name: str, dtype: DType, shape: tuple[int, ...], space: Space = Space.REGISTER
    ) -> Scratch:
        made = Scratch(self.unique(name), dtype, shape, space)
        self.scratches.append(made)
        return made

    def dim_param(self, symbol_name: str) -> Param:
        """The INDEX parameter that holds the value of a dim's symbol."""
        return self.dim_params.setdefault(symbol_name, Param(symbol_name, DType.INDEX))

    def scalar_param(self, name: str, dtype: DType) -> Param:
        made = Param(self.unique(name), dtype)
        self.scalar_params.append(made)
        return made

    def build(self, body: tuple[Stmt, ...], rules: Sequence[str] = ()) -> Kernel:
        params = (*(b.offset for b in self.buffers), *self.dim_params.values(), *self.scalar_params)
        memory = tuple(self.buffers), tuple(self.scratches)
        return Kernel(self.name, params, *memory, body, tuple(rules))
