"""Structural equality of attributes and modules, and the mapping of dims in attributes.

Owns what "equal" means: operands by position, attributes by content, NaN equal to NaN, names of
values only where they are a function's inputs. Never changes what it compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from aot.errors import InternalError
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Attr, Block, ConstantData, Function, FunctionRef, Module, Op, Value
from aot.ir.types import DType, Layout


def attr_key(value: Any) -> Hashable:
    """A key that only equal attributes share: 1, 1.0 and true differ, and so do 0.0 and -0.0.

    Raises:
        InternalError: `value` is no attribute.
    """
    match value:
        case None | bool() | str() | DType() | FunctionRef() | Layout() | ConstantData():
            return type(value).__name__, value
        case int() | DimExpr():
            return "dim", value
        case float():
            return "float", "nan" if math.isnan(value) else value.hex()
        case tuple():
            return "tuple", tuple(attr_key(v) for v in value)
    raise InternalError(f"{value!r} of type {type(value).__name__} is no attribute")


def attrs_key(op: Op) -> Hashable:
    """A key of all attributes of `op`; those with default values count as absent."""
    defaults = {a.name: attr_key(a.default) for a in op.record.attributes if not a.is_required}
    keys = ((name, attr_key(value)) for name, value in op.attrs.items())
    return tuple(sorted(pair for pair in keys if pair[1] != defaults.get(pair[0])))


def body_key(function: Function) -> Hashable:
    """A key that functions share if they compute the same from the same buffers; names don't
    count."""
    numbers = {arg: n for n, arg in enumerate(function.inputs)}
    ops: list[Hashable] = []
    for op in function.block:
        operands = tuple(-1 if v is None else numbers[v] for v in op.operands)
        for result in op.results:
            numbers[result] = len(numbers)
        ops.append((op.name, operands, attrs_key(op), tuple(v.type for v in op.results)))
    return tuple(a.type for a in function.inputs), tuple(ops), function.bindings


def modules_equal(a: Module, b: Module) -> bool:
    """Whether two modules are the same program: functions in order, ops, types, origins, names of
    inputs and results. Names of other values do not count."""
    return list(a.functions) == list(b.functions) and all(
        functions_equal(f, b.functions[name]) for name, f in a.functions.items()
    )


def functions_equal(a: Function, b: Function) -> bool:
    """Whether two functions are equal in the sense of `modules_equal`; their own names count."""
    return (
        a.name == b.name
        and a.kind == b.kind
        and a.dim_names == b.dim_names
        and a.result_names == b.result_names
        and a.updates == b.updates
        and a.strings == b.strings
        and a.bindings == b.bindings
        and a.schedule == b.schedule
        and list(a.assumptions) == list(b.assumptions)
        and [v.name for v in a.inputs] == [v.name for v in b.inputs]
        and _blocks_equal(a.block, b.block, {})
    )


def _blocks_equal(a: Block, b: Block, paired: dict[Value, Value]) -> bool:
    if len(a) != len(b) or [v.type for v in a.args] != [v.type for v in b.args]:
        return False
    paired.update(zip(a.args, b.args, strict=True))
    return all(_ops_equal(x, y, paired) for x, y in zip(a, b, strict=True))


def _ops_equal(a: Op, b: Op, paired: dict[Value, Value]) -> bool:
    if (
        a.record is not b.record
        or a.origin != b.origin
        or len(a.operands) != len(b.operands)
        or len(a.blocks) != len(b.blocks)
        or attrs_key(a) != attrs_key(b)
        or [v.type for v in a.results] != [v.type for v in b.results]
    ):
        return False
    for x, y in zip(a.operands, b.operands, strict=True):
        if (x is None) != (y is None) or (x is not None and paired.get(x) is not y):
            return False
    if not all(_blocks_equal(x, y, paired) for x, y in zip(a.blocks, b.blocks, strict=True)):
        return False
    paired.update(zip(a.results, b.results, strict=True))
    return True


def map_attr_dims(value: Attr, fn: Callable[[DimExpr], Dim]) -> Attr:
    """`value` with `fn` applied to every symbolic dim in it."""
    if isinstance(value, DimExpr):
        return fn(value)
    if isinstance(value, tuple):
        return tuple(map_attr_dims(v, fn) for v in value)
    if isinstance(value, Layout):
        return value.map_dims(lambda d: fn(d) if isinstance(d, DimExpr) else d)
    return value


def map_dims(attrs: Mapping[str, Attr], fn: Callable[[DimExpr], Dim]) -> dict[str, Attr]:
    """Attributes with `fn` applied to every symbolic dim in them."""
    return {name: map_attr_dims(value, fn) for name, value in attrs.items()}
