"""outline: moves each region into an executable and dispatches it; equal executables are shared.

Requires: regions with ties.
Ensures: no region is left; executables have canonical names, symbolic dims are their parameters
    `d0, d1, ...` in order of appearance, `bindings` say where each buffer is, and `schedule` how
    each stage runs on the target, as the plan for its dims has it.
Never: merges executables that differ in anything that a kernel depends on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from aot.analysis.control import control_ops
from aot.analysis.memory.storage import BufferAssignment
from aot.analysis.stages import ALGORITHM, DIRECT, planned
from aot.base.records import dataclass
from aot.ir.builtin import RETURN
from aot.ir.clone import clone_op
from aot.ir.compare import body_key
from aot.ir.dims import Dim, DimExpr, symbol
from aot.ir.graph import Attr, Block, Function, FunctionRef, Module, Op, Value
from aot.ir.rewriter import Rewriter
from aot.ir.types import TensorType
from aot.ops.structure import DISPATCH, REGION
from aot.passes.base import Pass, PassContext
from aot.target.model import Target


@dataclass
class DimNames:
    """Assigns a parameter to each distinct symbolic dim of a region."""

    names: dict[DimExpr, str] = field(default_factory=dict)

    def dim(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        return symbol(self.names.setdefault(dim, f"d{len(self.names)}"))

    def type(self, type: TensorType) -> TensorType:
        layout = type.layout and type.layout.map_dims(self.dim)
        return TensorType(type.dtype, tuple(map(self.dim, type.dims)), layout)

    def attr(self, value: Attr) -> Attr:
        if isinstance(value, DimExpr):
            return self.dim(value)
        if isinstance(value, tuple):
            return tuple(self.attr(v) for v in value)
        return value


def run(module: Module, context: PassContext) -> None:
    met, kept = outline(module, context.target)
    context.count("outline", "met", met)
    context.count("outline", "kept", kept)


def outline(module: Module, target: Target | None = None) -> tuple[int, int]:
    """Outlines the regions of every function; returns (executables made, executables kept).

    With a target, executables have their schedules from here on.
    """
    kept: dict[Hashable, Function] = {}
    met = 0
    for function in list(module.entry_points):
        assignment = BufferAssignment(function)
        bindings = {
            op: assignment.bindings([*(v for v in op.operands if v is not None), *op.results])
            for op in control_ops(function)
            if op.record is REGION
        }
        for op, classes in bindings.items():
            met += 1
            made, values = _executable(op, classes)
            key = identity(made, op.attrs.get("ties", ()))
            if key not in kept:
                made.name = f"e{len(kept)}"
                kept[key] = made
                if target is not None:
                    record_schedule(made, target)
                module.add(made)
            _dispatch(function, op, kept[key].name, values)
    return met, len(kept)


def _executable(region: Op, bindings: tuple[int, ...]) -> tuple[Function, tuple[Dim, ...]]:
    """(function, dim arguments): the region's block as a separate function, and the values of its
    dim parameters."""
    (block,) = region.blocks
    dims = DimNames()
    body = Block([dims.type(a.type) for a in block.args])
    function = Function("", body, [f"r{n}" for n in range(len(region.results))], "executable")
    values: dict[Value, Value] = dict(zip(block.args, body.args, strict=True))
    into = Rewriter(function, body)
    for op in block:
        if op.record.is_terminator:
            results = [values[v] for v in op.operands if v is not None]
            into.insert(Op(RETURN, results, {}, []))
            continue
        fresh = clone_op(op, values, into, dims.type, dims.attr)
        fresh.origin = ""
        for result in fresh.results:
            result.name = ""
    function.dim_names = tuple(dims.names.values())
    function.bindings = bindings
    return function, tuple(dims.names)


def identity(function: Function, ties: Attr) -> Hashable:
    """A key of everything that a kernel depends on: executables with equal keys have equal
    kernels."""
    return body_key(function), function.dim_names, ties


def _dispatch(function: Function, region: Op, name: str, dims: tuple[Dim, ...]) -> None:
    attrs: dict[str, Attr] = {
        "executable": FunctionRef(name),
        "dims": dims,
        "ties": region.attrs.get("ties", ()),
    }
    made = Op(
        DISPATCH,
        region.operands,
        attrs,
        [v.type for v in region.results],
        (),
        region.origin,
    )
    rewriter = Rewriter(function).at(region)
    rewriter.insert(made)
    rewriter.replace_op(region, made.results)


def record_schedule(function: Function, target: Target) -> None:
    """Plans an executable's schedule, unless it has one. Convolution algorithms move from the op's
    attribute into the schedule."""
    if function.schedule:
        return
    function.schedule = planned(function, target)
    for op in function.block:
        if op.attrs.get(ALGORITHM, DIRECT) != DIRECT:
            Rewriter(function).set_attr(op, ALGORITHM, DIRECT)


OUTLINE = Pass("outline", run, __doc__)
