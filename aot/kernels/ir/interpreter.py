"""Runs kernel IR in numpy: the oracle that both backends are compared with.

Owns execution: loops whose iterations are independent become numpy arrays ("batches"), all others
run in order. With `check_races` it also holds a kernel to what its loop kinds promise. Memory and
addresses are `aot.kernels.ir.memory`'s, arithmetic is `aot.kernels.ir.scalar`'s. Changes no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.dims import Dim, evaluate
from aot.ir.expr import Expr, Load, Param, Size, Var, children
from aot.ir.types import Array, DType
from aot.kernels.ir.memory import LANE_VARS, Batch, Memory
from aot.kernels.ir.nodes import (
    Barrier,
    Buffer,
    Combine,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixDot,
    MatrixProduct,
    MatrixStmt,
    MatrixStore,
    MatrixZero,
    Prefetch,
    Scratch,
    Stmt,
    Store,
    walk,
)
from aot.kernels.ir.races import LoopLog, RaceChecker
from aot.kernels.ir.scalar import Operation, apply_binary, operation, schedule, word_of

_IN_ORDER = (LoopKind.SERIAL, LoopKind.UNROLLED)


def run(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    params: Mapping[str, float | int],
    *,
    check_races: bool = False,
    fused: bool = True,
    batch_limit: int = 1 << 16,
) -> None:
    """Executes `kernel`, changing `buffers` in place.

    Args:
        kernel: a kernel that `aot.kernels.ir.verifier.verify` accepts.
        buffers: the four class buffers as flat uint8 arrays, by lower-case class name
            (`constants`, `arena`, `inputs`, `outputs`; unused ones may be missing); or one
            contiguous array per kernel buffer, by the buffer's name, in which case offsets need
            not be given and nothing aliases.
        params: the parameter block by name: byte offsets, dims, scalars.
        check_races: also check that the iterations of PARALLEL, VECTOR, LANE and WORKGROUP loops
            are independent, and that barriers stand between lanes that share scratch.
        fused: whether Fma rounds once or twice.
        batch_limit: iterations evaluated together, about; bounds memory.

    Raises:
        InternalError: an access out of bounds, undefined scratch read, a broken promise.
    """
    _Run(kernel, buffers, params, check_races, fused, batch_limit).run()


# From a batch and its operands' values to a node's own.
_Leaf = Callable[..., Array]


@dataclass(frozen=True)
class _Program:
    """The expressions of one statement, as steps in evaluation order.

    Attributes:
        start: the nodes' values, where no iteration changes them.
        steps: of each other node its number, its function, whether that takes the batch first, and
            the numbers of its operands.
        results: the roots' numbers.
    """

    start: list[Array | None]
    steps: tuple[tuple[int, Operation | _Leaf, bool, tuple[int, ...]], ...]
    results: tuple[int, ...]


class _Run:
    """One execution: parameters, memory and the program of each statement's expressions."""

    def __init__(
        self,
        kernel: Kernel,
        buffers: Mapping[str, Array],
        params: Mapping[str, float | int],
        check_races: bool,
        fused: bool,
        batch_limit: int,
    ) -> None:
        self.kernel = kernel
        self.fused = fused
        self.batch_limit = batch_limit
        self.memory = Memory(kernel, buffers, params)
        self.dim_values = {
            p.name: int(self.memory.params[p.name]) for p in kernel.params if p.dtype is DType.INDEX
        }
        self.races = RaceChecker(kernel) if check_races else None
        self.memory.races = self.races
        self._programs: dict[object, _Program] = {}
        self._meanings: dict[MatrixDot | MatrixStmt, tuple[Stmt, ...]] = {}
        self._extents: dict[Dim, int] = {}
        self._stored_scratch: dict[For, frozenset[Scratch]] = {}

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self.grid(self.kernel.body, Batch.root())
        if self.races:
            self.races.finish()

    def extent(self, dim: Dim) -> int:
        if dim not in self._extents:
            self._extents[dim] = evaluate(dim, self.dim_values)
        return self._extents[dim]

    def grid(self, body: tuple[Stmt, ...], batch: Batch) -> None:
        """Runs the WORKGROUP loops, then the body with separate scratch for every workgroup."""
        if len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.WORKGROUP:
            self.independent(body[0], batch, is_grid=True)
            return
        batch = batch.child()
        self.memory.allocate_scratch(batch)
        if self.races:
            self.races.enter_workgroups(batch)
        self.body(body, batch)
        if self.races:
            self.races.leave_workgroups()

    def body(self, body: tuple[Stmt, ...], batch: Batch) -> None:
        if batch.count == 0:
            return
        for stmt in body:
            match stmt:
                case Let():
                    batch.values[stmt.var] = self.values(stmt, [stmt.value], batch)[0]
                case Store():
                    self.store(stmt, batch)
                case For():
                    self.loop(stmt, batch)
                case If():
                    self.branch(stmt, batch)
                case Combine():
                    batch.values[stmt.result] = self.combined(stmt, batch)
                case Prefetch():
                    pass
                case MatrixDot() | MatrixZero() | MatrixProduct() | MatrixStore():
                    self.body(self.meaning(stmt), batch)
                case Barrier():
                    if self.races:
                        self.races.barrier(orders_buffers=stmt.orders_buffers)

    def meaning(self, stmt: MatrixDot | MatrixStmt) -> tuple[Stmt, ...]:
        """The scalar statements that define a matrix statement. Repeated calls return the same
        nodes."""
        if stmt not in self._meanings:
            meant = stmt.meaning()
            self._meanings[stmt] = meant if isinstance(meant, tuple) else (meant,)
        return self._meanings[stmt]

    def combined(self, stmt: Combine, batch: Batch) -> Array:
        """Combines the lanes' values of each workgroup into one value, repeated for each lane."""
        inner = batch.expand(stmt.lane, 0, stmt.extent)
        inner.values[LANE_VARS[0]] = inner.values[stmt.lane]
        (values,) = self.values(stmt, [stmt.value], inner)
        rows = np.broadcast_to(values, (inner.count,)).reshape(batch.count, stmt.extent)
        total = rows[:, 0]
        for lane in range(1, stmt.extent):
            total = apply_binary(stmt.op, total, rows[:, lane], stmt.result.dtype)
        return total

    def loop(self, loop: For, batch: Batch) -> None:
        if loop.kind in _IN_ORDER:
            for i in range(self.extent(loop.extent)):
                self.body(loop.body, batch.child({loop.var: np.asarray(i, np.int64)}))
        elif loop.kind is LoopKind.LANE:
            self.lanes(loop, batch)
        else:
            self.independent(loop, batch)

    def lanes(self, loop: For, batch: Batch) -> None:
        inner = batch.expand(loop.var, 0, self.extent(loop.extent))
        inner.values[LANE_VARS[loop.axis]] = inner.values[loop.var]
        self.body(loop.body, inner)

    def independent(self, loop: For, batch: Batch, *, is_grid: bool = False) -> None:
        """Runs the iterations of a PARALLEL, VECTOR or WORKGROUP loop together, as many at once as
        the limit allows.

        A PARALLEL body that stores scratch has it to itself, so its iterations run one by one.
        """
        extent = self.extent(loop.extent)
        log = self.races.enter_loop(loop, batch) if self.races else None
        one_by_one = loop.kind is LoopKind.PARALLEL and self.stored_scratch(loop)
        step = 1 if one_by_one else max(1, self.batch_limit // batch.count)
        if loop.kind is LoopKind.VECTOR:
            step = max(extent, 1)
        for start in range(0, extent, step):
            inner = batch.expand(loop.var, start, min(start + step, extent))
            if log:
                log.begin(inner, loop.var)
            if is_grid:
                self.grid(loop.body, inner)
            else:
                self.body(loop.body, inner)
        if log and self.races:
            self.leave(loop, log)

    def leave(self, loop: For, log: LoopLog) -> None:
        assert self.races is not None
        self.races.leave_loop(log)
        if loop.kind is LoopKind.PARALLEL:
            # Which iteration was last is open, so what several stored is nobody's value.
            for scratch, addresses in log.stored_by_several():
                self.memory.undefine(scratch, addresses)

    def stored_scratch(self, loop: For) -> frozenset[Scratch]:
        if loop not in self._stored_scratch:
            self._stored_scratch[loop] = frozenset(
                s.target
                for s in walk(loop.body)
                if isinstance(s, Store) and isinstance(s.target, Scratch)
            )
        return self._stored_scratch[loop]

    def branch(self, stmt: If, batch: Batch) -> None:
        condition = self.values(stmt, [stmt.condition], batch)[0]
        if condition.ndim == 0:
            self.body(stmt.then if condition else stmt.otherwise, batch.child())
            return
        for body, chosen in ((stmt.then, condition), (stmt.otherwise, ~condition)):
            if body:
                self.body(body, batch.select(np.flatnonzero(chosen)))

    def store(self, stmt: Store, batch: Batch) -> None:
        roots = [*stmt.indices, stmt.value]
        if stmt.guard is None:
            *indices, value = self.values(stmt, roots, batch)
            self.memory.store(stmt.target, indices, value, batch)
            return
        *indices, value, guard = self.values(stmt, [*roots, stmt.guard], batch)
        self.memory.store(stmt.target, indices, value, batch, guard)

    def values(self, stmt: Stmt, roots: list[Expr], batch: Batch) -> list[Array]:
        """Evaluates the root expressions of a statement for every iteration of `batch`: arrays of
        the batch's length, or scalars."""
        program = self._programs.get(stmt)
        if program is None:
            program = self._programs[stmt] = self.program(roots)
        values: list[Any] = program.start.copy()
        for number, made, takes_batch, operands in program.steps:
            args = [values[n] for n in operands]
            values[number] = made(batch, *args) if takes_batch else made(*args)
        return [values[n] for n in program.results]

    def program(self, roots: list[Expr]) -> _Program:
        nodes = schedule(roots)
        place = {node: number for number, node in enumerate(nodes)}
        start: list[Array | None] = []
        steps = []
        for number, node in enumerate(nodes):
            operands = tuple(place[c] for c in children(node))
            made = operation(node, fused=self.fused)
            known = [start[n] for n in operands]
            value = None
            if isinstance(node, Size):
                value = np.asarray(self.extent(node.dim), np.int64)
            elif isinstance(node, Param):
                value = self.memory.params[node.name]
            elif made is None:
                steps.append((number, self.leaf(node), True, operands))
            elif all(v is not None for v in known):
                value = made(*known)
            else:
                steps.append((number, made, False, operands))
            start.append(value)
        return _Program(start, tuple(steps), tuple(place[root] for root in roots))

    def leaf(self, node: Expr) -> _Leaf:
        """A function that evaluates a variable or a load, given a batch and its operands'
        values."""
        if isinstance(node, Var):
            return partial(self.variable, node)
        if not isinstance(node, Load):
            raise InternalError(
                f"kernel {self.kernel.name}: {type(node).__name__} cannot be evaluated in a kernel"
            )
        load = self.memory.load if node.dtype is node.source.dtype else partial(self.word, node)
        source, rank = node.source, len(node.indices)
        if node.guard is None:
            return lambda batch, *args: load(source, args, batch, None, None)
        return lambda batch, *args: load(source, args[:rank], batch, *args[rank:])

    def word(
        self,
        node: Load,
        source: Buffer | Scratch,
        indices: Sequence[Array],
        batch: Batch,
        guard: Array | None,
        other: Array | None,
    ) -> Array:
        """Evaluates a packed load: the word made of neighbouring elements along the last index."""
        parts = [
            self.memory.load(
                source,
                [*indices[:-1], np.asarray(indices[-1] + number)],
                batch,
                guard,
                None if guard is None else np.asarray(0, source.dtype.numpy),
            )
            for number in range(node.dtype.parts)
        ]
        word = word_of(parts, node.dtype)
        return word if guard is None else np.where(guard, word, other)  # type: ignore[arg-type]

    def variable(self, var: Var, batch: Batch) -> Array:
        value = batch.lookup(var)
        if value is None:
            raise InternalError(f"kernel {self.kernel.name}: variable {var.name} is not bound")
        return value
