"""Placement of a kernel's scratch on a CPU: registers and stack, or worker memory.

Owns the offsets into a worker's scratch memory, which what is used in different statements of a
workgroup shares, and the copies that lanes need, because a CPU runs the lanes of a workgroup one
after another. Emits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from aot.backends.cpu.traits import Traits
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.expr import Expr, Load, children
from aot.kernels.ir.nodes import (
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    MatrixDot,
    Scratch,
    Space,
    Stmt,
    Store,
)
from aot.target.model import Target

ALIGNMENT = 64


@dataclass(frozen=True)
class Slot:
    """The place of one scratch: registers, stack or worker memory.

    Attributes:
        offset: bytes into the worker's memory, or None on the stack, where what is indexed by
            constants becomes registers.
        copies: lanes along x, y and z that each have their own copy; 1 where they share.
    """

    offset: int | None
    copies: tuple[int, int, int]


@dataclass(frozen=True)
class ScratchPlan:
    slots: dict[Scratch, Slot]
    bytes: int


def plan_scratch(kernel: Kernel, traits: Traits) -> ScratchPlan:
    """Places every scratch of `kernel`.

    Raises:
        InternalError: REGISTER and PRIVATE scratch take more than the target's stack bound.
    """
    sizes = kernel.workgroup_size
    carried = set() if sizes == (1, 1, 1) else _carried_by_lanes(kernel)
    slots: dict[Scratch, Slot] = {}
    in_memory: dict[Scratch, int] = {}
    stack_bytes = 0
    for scratch in kernel.scratch:
        copies = sizes if scratch in carried else (1, 1, 1)
        taken = prod(scratch.shape) * traits.bytes_of(scratch.dtype) * prod(copies)
        slots[scratch] = Slot(None, copies)
        if scratch.space is not Space.WORKGROUP and prod(copies) == 1:
            stack_bytes += taken
            if stack_bytes > traits.target.max_stack_bytes:
                raise InternalError(
                    f"kernel {kernel.name}: scratch {scratch.name} takes the stack to {stack_bytes}"
                    f" bytes, target {traits.target.name} allows {traits.target.max_stack_bytes}"
                )
        else:
            in_memory[scratch] = -(-taken // ALIGNMENT) * ALIGNMENT
    offsets = _place(in_memory, _live_ranges(kernel) if len(in_memory) > 1 else {})
    for scratch, offset in offsets.items():
        slots[scratch] = Slot(offset, slots[scratch].copies)
    return ScratchPlan(slots, max((offsets[s] + n for s, n in in_memory.items()), default=0))


def _place(
    sizes: Mapping[Scratch, int], live: Mapping[Scratch, tuple[int, int]]
) -> dict[Scratch, int]:
    """Assigns offsets to scratch, largest first, each at the first free one. Scratch that is live
    at the same time does not overlap.
    """
    offsets: dict[Scratch, int] = {}
    for scratch in sorted(sizes, key=lambda s: -sizes[s]):
        first, last = live.get(scratch, (0, 0))
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in offsets
            if live.get(other, (0, 0))[0] <= last and first <= live.get(other, (0, 0))[1]
        )
        offset = 0
        for start, end in taken:
            if offset + sizes[scratch] <= start:
                break
            offset = max(offset, end)
        offsets[scratch] = offset
    return offsets


def _live_ranges(kernel: Kernel) -> dict[Scratch, tuple[int, int]]:
    """The first and last of the workgroup's statements that use each scratch.

    Nothing is kept from one workgroup to the next; what loops within one keep, the whole loop, one
    statement here, keeps.
    """
    body = kernel.body
    while True:
        loops = [s for s in body if isinstance(s, For) and s.kind is LoopKind.WORKGROUP]
        if not loops:
            break
        if len(body) > 1 and any(not isinstance(s, Let) for s in body if s is not loops[0]):
            break
        body = loops[0].body
    live: dict[Scratch, tuple[int, int]] = {}
    for number, stmt in enumerate(body):
        for scratch in _all_scratches(stmt):
            live[scratch] = (live.get(scratch, (number, number))[0], number)
    return live


def _all_scratches(stmt: Stmt) -> set[Scratch]:
    """The scratch that a statement uses, including its body."""
    found = _scratches_of(stmt)
    bodies = (stmt.then, stmt.otherwise) if isinstance(stmt, If) else ()
    for body in (stmt.body,) if isinstance(stmt, For) else bodies:
        for inner in body:
            found |= _all_scratches(inner)
    return found


def scratch_bytes(kernel: Kernel, target: Target) -> int:
    """Bytes of worker memory that a workgroup of `kernel` needs, 64-byte aligned."""
    return plan_scratch(kernel, Traits.of(target)).bytes


def _carried_by_lanes(kernel: Kernel) -> set[Scratch]:
    """REGISTER scratch that lanes store and that is live beyond one iteration over the lanes."""
    stored: set[Scratch] = set()
    uses: dict[Scratch, set[For | None]] = {}
    repeated: set[Scratch] = set()

    def visit(body: tuple[Stmt, ...], lane_loop: For | None, is_repeated: bool) -> None:
        for stmt in body:
            for scratch in _scratches_of(stmt):
                uses.setdefault(scratch, set()).add(lane_loop)
                if is_repeated:
                    repeated.add(scratch)
            if isinstance(stmt, Store) and isinstance(stmt.target, Scratch) and lane_loop:
                stored.add(stmt.target)
            if isinstance(stmt, If):
                visit(stmt.then, lane_loop, is_repeated)
                visit(stmt.otherwise, lane_loop, is_repeated)
            elif isinstance(stmt, For):
                # The outermost LANE loop counts: lanes inside it run to its end one by one.
                is_lane = stmt.kind is LoopKind.LANE
                repeats = lane_loop is None and not is_lane and stmt.kind is not LoopKind.WORKGROUP
                visit(stmt.body, lane_loop or (stmt if is_lane else None), is_repeated or repeats)

    visit(kernel.body, None, False)
    return {s for s in stored if s.space is Space.REGISTER and (len(uses[s]) > 1 or s in repeated)}


def _scratches_of(stmt: Stmt) -> set[Scratch]:
    """The scratch that a statement itself stores or loads, without its body."""
    match stmt:
        case Store():
            found = {stmt.target} if isinstance(stmt.target, Scratch) else set()
            roots = [*stmt.indices, stmt.value, *([stmt.guard] if stmt.guard is not None else [])]
        case Let():
            found, roots = set(), [stmt.value]
        case If():
            found, roots = set(), [stmt.condition]
        case MatrixDot():
            found, roots = {stmt.sums}, [stmt.rows, *stmt.columns]
        case _:
            return set()
    return found | {e.source for e in loads(roots) if isinstance(e.source, Scratch)}


def loads(roots: list[Expr]) -> list[Load]:
    """Every Load in `roots`, once each."""
    seen: set[Expr] = set()
    stack, found = list(roots), []
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, Load):
            found.append(e)
        stack.extend(children(e))
    return found
