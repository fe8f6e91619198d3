"""The dispatches of a program and the executables that they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, FunctionRef, Module, Op
from aot.ops.structure import DISPATCH


def is_dispatch(op: Op) -> bool:
    """Whether `op` is a dispatch, which runs an executable."""
    return op.record is DISPATCH


def executable_of(dispatch: Op) -> str:
    """The name of the executable that a dispatch runs."""
    name = dispatch.attrs["executable"]
    assert isinstance(name, FunctionRef)
    return name.name


def where(node: str, executable: str) -> str:
    """The name of a dispatch in messages: the model's node if known, else the executable."""
    return f"node {node!r}" if node else f"executable {executable}"


def dims_of_dispatch(dispatch: Op, names: Sequence[str]) -> dict[str, Dim]:
    """The dim arguments that a dispatch passes to its executable, by the parameter `names`."""
    values = dispatch.attrs.get("dims", ())
    assert isinstance(values, tuple)
    pairs = zip(names, values, strict=True)
    return {name: value for name, value in pairs if isinstance(value, (int, DimExpr))}


def extents_of_dispatch(dispatch: Op) -> set[Dim]:
    """The extents of a dispatch's operands and results, which a program has checked to be
    non-negative. Its other dims may be negative, such as `N - 1` for a tensor that may be empty."""
    values = [*filter(None, dispatch.operands), *dispatch.results]
    return {dim for value in values for dim in value.type.dims}


def dispatches_of(module: Module, only: Function | None = None) -> Iterator[tuple[Op, str]]:
    """(dispatch, executable name) of all dispatches in order: the entry points', or those of the
    function `only`."""
    for function in module.entry_points if only is None else [only]:
        for op in function.walk():
            if is_dispatch(op):
                yield op, executable_of(op)


def dispatched(module: Module) -> tuple[str, ...]:
    """The executable name of each dispatch, in order."""
    return tuple(name for _, name in dispatches_of(module))
