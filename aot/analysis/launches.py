"""The arithmetic and memory traffic of each dispatch, as dims, for benchmarks.

Counts what the op table says, not what a schedule does: a product's terms where a window is in
the padding count, and what a faster algorithm saves is still counted. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from aot.analysis.control import control_ops
from aot.analysis.dispatches import executable_of, is_dispatch
from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.assumed_extents import WORK
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Call, Kind, call_of
from aot.ir.types import DType, TensorType

_NO_ARITHMETIC = frozenset({DType.INDEX, DType.BOOL})


@dataclass(frozen=True)
class Launch:
    """A dispatch of a program, with its arithmetic and memory traffic.

    Attributes:
        origin: the model's node at its heart.
        flops: arithmetic operations on elements; a multiply-add is two.
        bytes: of what it must read and write at least, each once.
        dtype: the type of most of its arithmetic, "f32" for example; "i8" where bytes are
            multiplied, whatever the type of their sums; "" where it has none.
    """

    origin: str
    flops: Dim
    bytes: Dim
    dtype: str = ""


def launches_of(function: Function, module: Module) -> tuple[Launch, ...]:
    """The launches of an entry point's dispatches, in program order."""
    executables = {f.name: f for f in module.executables}
    flops: dict[str, dict[str, Dim]] = {}
    found = []
    for op in control_ops(function):
        if is_dispatch(op):
            name = executable_of(op)
            if name not in flops:
                flops[name] = flops_by_dtype(executables[name])
            found.append(launch_of(op, executables[name], flops[name]))
    return tuple(found)


def launch_of(op: Op, executable: Function, flops: Mapping[str, Dim]) -> Launch:
    """The launch of one dispatch of `executable`, in symbols of the surrounding function; `flops`
    are the executable's by their types.
    """
    values = op.attrs.get("dims", ())
    assert isinstance(values, tuple)
    env = {
        name: dim
        for name, dim in zip(executable.dim_names, values, strict=True)
        if isinstance(dim, int | DimExpr)
    }
    total: Dim = 0
    for part in flops.values():
        total = dims.add(total, part)
    most = max(flops, key=lambda name: dims.estimate(flops[name], WORK) or 0, default="")
    return Launch(op.origin, dims.substitute(total, env), _bytes_of(op, executable, env), most)


def flops_by_dtype(function: Function) -> dict[str, Dim]:
    """Arithmetic operations of an executable by their type (see `Launch`), over its dim
    parameters."""
    totals: dict[str, Dim] = {}
    for op in function.block:
        for name, count in flops_of_call(call_of(op)).items():
            totals[name] = dims.add(totals.get(name, 0), count)
    return totals


def flops_of_call(call: Call) -> dict[str, Dim]:
    """Arithmetic operations of one op by their type (see `Launch`)."""
    record = call.record
    if record.flops is not None:
        return {call.result_types[0].dtype.value: record.flops(call)}
    if record.compute is None or record.kind in (Kind.VIEW, Kind.MOVEMENT):
        return {}
    totals: dict[str, Dim] = {}
    for compute, type in zip(record.compute(call), call.result_types, strict=True):
        extents = dict(zip(compute.indices, type.dims, strict=True))
        nodes = {e: _dtype_of(e, call) for e in expr.nodes(compute.value) if _flops(e)}
        for name in dict.fromkeys(nodes.values()):
            weights = {e: _flops(e) for e, dtype in nodes.items() if dtype == name}
            count = count_operations(compute.value, extents, partial(_weight, weights))
            if count != 0:
                totals[name] = dims.add(totals.get(name, 0), count)
    return totals


def _flops(e: expr.Expr) -> int:
    if isinstance(e, expr.Fma):
        return 2
    return 1 if isinstance(e, expr.Unary | expr.Binary | expr.Reduce) else 0


def _weight(weights: Mapping[expr.Expr, int], e: expr.Expr) -> int:
    return weights.get(e, 0)


def _dtype_of(e: expr.Expr, call: Call) -> str:
    """The type of a node's arithmetic: its own, or "i8" for integers made of bytes alone."""
    dtype: DType = e.dtype
    if dtype.is_float or dtype in _NO_ARITHMETIC:
        return str(dtype.value)
    loads = expr.loads(e)
    are_bytes = all(call.operand(n.source).dtype.bits <= 8 for n in loads)
    return str((DType.I8 if loads and are_bytes else dtype).value)


def count_operations(
    e: expr.Expr,
    extents: Mapping[expr.Var, Dim],
    weigh: Callable[[expr.Expr], int],
    seen: set[expr.Expr] | None = None,
) -> Dim:
    """The number of operations of an expression over `extents`, with each node weighted by `weigh`.
    Subexpressions common to several elements count once.

    What is the same for several elements is made once.
    """
    seen = set() if seen is None else seen
    if e in seen:
        return 0
    seen.add(e)
    if e.dtype in _NO_ARITHMETIC and not isinstance(e, expr.Reduce):
        return 0  # index arithmetic is not the model's
    own = [extents[v] for v in expr.free_vars(e) if v in extents]
    if isinstance(e, expr.Reduce):
        own += [n for _, n in e.axes]
        extents = {**extents, **dict(e.axes)}
    total = dims.multiply(weigh(e), dims.product(own))
    for child in expr.children(e):
        total = dims.add(total, count_operations(child, extents, weigh, seen))
    return total


def _bytes_of(op: Op, executable: Function, env: Mapping[str, Dim]) -> Dim:
    operands = [v for v in op.operands if v is not None]
    sizes: dict[Value, Dim] = {v: _size(v.type) for v in (*operands, *op.results)}
    if len(operands) == len(executable.inputs):
        for value, parameter in zip(operands, executable.inputs, strict=True):
            sizes[value] = dims.minimum(sizes[value], dims.substitute(_read_of(parameter), env))
    total: Dim = 0
    for size in sizes.values():
        total = dims.add(total, size)
    return total


def _size(type: TensorType) -> Dim:
    """Bytes of a value's elements, without gaps: a view of a part of a buffer does not touch
    those."""
    return type.dtype.storage_bytes(type.element_count)


def _read_of(parameter: Value) -> Dim:
    """The bytes read of an operand; only the selected elements, if its users only select
    elements."""
    total: Dim = 0
    for user in parameter.users:
        if user.record.kind is not Kind.MOVEMENT:
            return _size(parameter.type)
        for result in user.results:
            total = dims.add(total, _size(result.type))
    return total
