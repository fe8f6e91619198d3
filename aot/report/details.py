"""Details of a compile for reports, which are not stored in the module file.

Filled by the pipeline where someone asks, from what the stages decided; decides nothing. Plain
facts: nothing here holds on to the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from aot.analysis.control import control_ops
from aot.analysis.dispatches import executable_of, is_dispatch
from aot.analysis.launches import Launch
from aot.analysis.memory.storage import is_loop
from aot.base.records import dataclass
from aot.driver.clock import Span
from aot.ir import dims
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Block, ConstantData, Function, Module, Op, Value
from aot.kernels.ir.nodes import Kernel
from aot.link.emit_program import EmittedProgram
from aot.passes.base import PassContext, PassRun
from aot.passes.fusion.region_report import regions_of


@dataclass(frozen=True)
class DispatchDetails:
    """A dispatch, in program order.

    Attributes:
        region: of `region_report.regions_of`; None where the passes after it changed too much.
        grid: workgroups along x, y and z.
        within: the control flow that it stands in, outermost first; empty for most.
        position: of the execute part, as lifetimes have it.
    """

    region: Mapping[str, Any] | None = field(repr=False)
    grid: tuple[Dim, Dim, Dim]
    within: tuple[str, ...]
    position: int


@dataclass(frozen=True)
class BufferDetails:
    """A buffer of the arena, at the largest shapes.

    Attributes:
        makers: numbers of the dispatches that write to it.
        first, last: positions at which it is needed, both included.
    """

    makers: tuple[int, ...]
    first: int
    last: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class ConstantDetails:
    """A constant that the program reads.

    Attributes:
        node: the model's node that made it; of the first that reads it, if it has none.
        digest: of its contents, by which variants share it.
        reader: number of the first dispatch that reads it; None if only the program does.
    """

    node: str
    type: str
    bytes: int
    digest: str
    reader: int | None


@dataclass(frozen=True)
class EntryDetails:
    """Details of an entry point of a variant.

    Attributes:
        launches: what the dispatches do.
        buffers: None where sizes are known at run time only.
        positions: how many there are.
        scratch: bytes that lie at the program's `scratch_offset`, by position.
    """

    name: str
    dispatches: tuple[DispatchDetails, ...]
    launches: tuple[Launch, ...]
    buffers: tuple[BufferDetails, ...] | None
    positions: int
    scratch: Mapping[int, int]
    constants: tuple[ConstantDetails, ...]

    def __repr__(self) -> str:
        counts = f"{len(self.dispatches)} dispatches, {len(self.constants)} constants"
        return f"<EntryDetails {self.name!r}: {counts}>"


@dataclass
class VariantDetails:
    """Details of one variant.

    Attributes:
        passes: each run of a pass, those of the model first.
        entries: in the order of the variant's entry points.
        target: the name of its target.
        stages: what the compile did when, those of the model first.
    """

    passes: tuple[PassRun, ...] = ()
    entries: tuple[EntryDetails, ...] = ()
    target: str = ""
    stages: tuple[Span, ...] = ()
    _regions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<VariantDetails: {len(self.passes)} passes, {len(self.entries)} entry points>"

    def formed(self, module: Module, context: PassContext) -> None:
        """Records the dispatch regions, once they are formed; `context.remarks` says why each
        ends."""
        self._regions = {f.name: regions_of(f, context) for f in module.entry_points}

    def built(
        self,
        module: Module,
        context: PassContext,
        kernels: Sequence[Kernel],
        programs: Sequence[EmittedProgram],
        launches: Sequence[tuple[Launch, ...]],
    ) -> None:
        """Records the passes, and each entry point with its kernels, program and launches."""
        self.passes = tuple(context.runs)
        callees = {f.name: (f, k) for f, k in zip(module.executables, kernels, strict=True)}
        self.entries = tuple(
            _entry(function, callees, program, self._regions.pop(function.name, []), found)
            for function, program, found in zip(
                module.entry_points, programs, launches, strict=True
            )
        )

    def timed(self, target: str, spans: Sequence[Span]) -> None:
        """Records when the stages ran."""
        self.target, self.stages = target, tuple(spans)


@dataclass
class Details:
    """Details of a compile, by variant.

    Attributes:
        variants: in the order of the module's.
    """

    variants: list[VariantDetails] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Details of {len(self.variants)} variants>"

    def variant(self) -> VariantDetails:
        """Adds an empty record for the next variant, and returns it."""
        self.variants.append(VariantDetails())
        return self.variants[-1]


def _entry(
    function: Function,
    callees: Mapping[str, tuple[Function, Kernel]],
    program: EmittedProgram,
    regions: Sequence[Mapping[str, Any]],
    launches: tuple[Launch, ...],
) -> EntryDetails:
    numbers = {op: n for n, op in enumerate(o for o in control_ops(function) if is_dispatch(o))}
    known = regions if len(regions) == len(numbers) else [None] * len(numbers)
    dispatches = tuple(
        DispatchDetails(region, _grid(op, callees), _within(op), position)
        for op, region, position in zip(numbers, known, program.positions, strict=True)
    )
    buffers = program.buffers
    made = (
        None
        if buffers is None
        else tuple(
            BufferDetails(
                tuple(numbers[op] for op in b.makers),
                *(b.first, b.last, b.offset, b.size_bytes),
            )
            for b in buffers
        )
    )
    positions = 1 + max((*program.positions, *(b.last for b in buffers or ())), default=0)
    constants = tuple(_constants(function, numbers))
    return EntryDetails(
        *(program.entry_point.name, dispatches, launches, made),
        *(positions, dict(program.scratch), constants),
    )


def _grid(op: Op, callees: Mapping[str, tuple[Function, Kernel]]) -> tuple[Dim, Dim, Dim]:
    values = op.attrs.get("dims", ())
    assert isinstance(values, tuple)
    executable, kernel = callees[executable_of(op)]
    env = {
        n: d
        for n, d in zip(executable.dim_names, values, strict=True)
        if isinstance(d, int | DimExpr)
    }
    x, y, z = (dims.substitute(g, env) for g in kernel.grid)
    return x, y, z


def _within(op: Op) -> tuple[str, ...]:
    """The names of the loops and branches around an op, outermost first."""
    found: list[str] = []
    block: Block | None = op.parent
    while block is not None and isinstance(owner := block.owner, Op):
        name = f" {owner.origin}" if owner.origin else ""
        branch = "loop" if is_loop(owner) else ("then", "else")[owner.blocks.index(block)]
        found.append(f"{branch}{name}")
        block = owner.parent
    return tuple(reversed(found))


def _constants(function: Function, numbers: Mapping[Op, int]) -> list[ConstantDetails]:
    """Details of the constants that are read, in program order."""
    found = []
    for op in control_ops(function):
        data = op.attrs.get("value")
        if isinstance(data, ConstantData) and op.result.uses:
            reader = _first_reader(op.result, numbers)
            origin = op.origin or ("" if reader is None else reader.origin)
            size = len(data.bytes)
            number = None if reader is None else numbers[reader]
            found.append(ConstantDetails(origin, str(data.type), size, data.digest, number))
    return found


def _first_reader(value: Value, numbers: Mapping[Op, int]) -> Op | None:
    """The first dispatch that reads a value or a view of it."""
    readers: list[Op] = []
    waiting, seen = [value], {value}
    while waiting:
        for user in waiting.pop().users:
            if user in numbers:
                readers.append(user)
            else:
                fresh = [r for r in user.results if r not in seen]
                seen.update(fresh)
                waiting += fresh
    return min(readers, key=numbers.__getitem__, default=None)
