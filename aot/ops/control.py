"""Control flow, states, containers and writes in place: ops whose meaning involves memory.

`if` and `loop` hold blocks that see the values around them. A *state* is memory that is kept
between calls. What writes an operand changes memory that other values may show; `get` and what
writes give views. Order among such ops counts, and `aot/analysis/alias/database.py` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.ir.body import Body
from aot.ir.dims import DimExpr, is_symbol_name
from aot.ir.graph import FunctionRef
from aot.ir.loops import MOST_RUNS
from aot.ir.record import (
    ANY,
    BOOL,
    Attribute,
    Call,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    register,
)
from aot.ir.types import Array, DType, Layout, TensorType
from aot.ops.put import fits_into, has_start_a_dim, put

I64 = frozenset({DType.I64})

CONDITION_TYPE = TensorType(DType.BOOL, ())
INDEX_TYPE = TensorType(DType.I64, ())


def _block_types(call: Call) -> Sequence[TensorType]:
    raise call.error("its result types come from its blocks: build it with them")


def _callee_types(call: Call) -> Sequence[TensorType]:
    raise call.error("its result types come from the function: build it with result_types")


def _is_scalar(*numbers: int) -> Constraint:
    def holds(call: Call) -> bool:
        return all(not call.has(n) or call.operand(n).dims == () for n in numbers)

    names = " and ".join({0: "operand 0", 1: "operand 1"}[n] for n in numbers)
    return Constraint(f"{names} must be a scalar", holds)


IF = register(
    OpRecord(
        name="if",
        summary="Runs its first block where condition is true, else its second; the results are "
        "what the block yields. Blocks have no arguments and see the values around them.",
        operands=(Operand("condition", BOOL),),
        constraints=(_is_scalar(0),),
        infer=_block_types,
        kind=Kind.STRUCTURE,
        results_from="block",
        body=Body("choice", first=1),
    )
)


LOOP = register(
    OpRecord(
        name="loop",
        summary="Runs its block while it has run less often than trip_count and `trips`, and "
        "condition (later: the first value that the block yields) is true. The block gets the "
        "number of the run and the carried values, and yields the next ones; values that it yields "
        "beyond them are stacked, and rows of runs that did not happen are zero.",
        operands=(
            Operand("trip_count", I64, "optional"),
            Operand("condition", BOOL, "optional"),
            Operand("carried", kind="variadic", is_mixed=True),
        ),
        attributes=(
            Attribute("trips", "dim", -1, "the most runs, and rows of what is stacked; -1 is any"),
            Attribute(
                "most",
                "int",
                0,
                "where only the condition ends it, runs after which that is an error; 0 is a "
                f"default of {MOST_RUNS:,}",
            ),
        ),
        constraints=(_is_scalar(0, 1),),
        infer=_block_types,
        kind=Kind.STRUCTURE,
        results_from="block",
        body=Body(
            "loop",
            first=2,
            given=(INDEX_TYPE,),
            steering=(CONDITION_TYPE,),
            stack_dim="trips",
        ),
    )
)


def _is_function(call: Call) -> bool:
    return isinstance(call.attrs["function"], FunctionRef)


CALL = register(
    OpRecord(
        name="call",
        summary="Runs a function of the module on its operands' memory. What that does to memory "
        "is not looked at: it counts as unknown.",
        operands=(Operand("inputs", kind="variadic", is_mixed=True),),
        attributes=(Attribute("function", "function"),),
        constraints=(Constraint("function must name a function", _is_function),),
        infer=_callee_types,
        kind=Kind.STRUCTURE,
        results_from="callee",
        has_side_effects=True,
        has_unknown_effects=True,
        unsupported="calls at run time",
    )
)


# state


def _is_fixed_or_grows(call: Call) -> bool:
    layout, axis, length = call.attrs["layout"], call.int("axis"), call.dim("length")
    assert isinstance(layout, Layout)
    if call.int("capacity") == 0:
        return axis == 0 and length == 0 and call.int("window") == 0
    is_symbol = isinstance(length, DimExpr) and is_symbol_name(str(length))
    return is_symbol and 0 <= axis < len(call.dims("shape")) == len(layout.strides)


def _state_type(call: Call) -> Sequence[TensorType]:
    dtype, layout = call.attrs["dtype"], call.attrs["layout"]
    assert isinstance(dtype, DType) and isinstance(layout, Layout)
    return [TensorType(dtype, call.dims("shape"), None if layout == Layout() else layout)]


STATE = register(
    OpRecord(
        name="state",
        summary="The memory of a state variable, which is kept between calls and zero at first. "
        "With strides from a capacity, `state` ops of one name show more or less of one memory.",
        operands=(),
        attributes=(
            Attribute("variable", "str", doc="its name; equal names are one memory"),
            Attribute("dtype", "dtype"),
            Attribute("shape", "dims"),
            Attribute("layout", "layout", Layout(), "{} is dense"),
            Attribute(
                "capacity", "int", 0, "of a growing one: extents that its memory has; 0 is fixed"
            ),
            Attribute("axis", "int", 0, "of a growing one: the dim that grows"),
            Attribute("length", "dim", 0, "of a growing one: a symbol, its extent before a run"),
            Attribute(
                "window", "int", 0, "of a growing one: extents that stay of a long one; 0 is all"
            ),
        ),
        constraints=(
            Constraint(
                "a growing state has a dim axis, strides, and a symbol as its length; a fixed one "
                "has none of them",
                _is_fixed_or_grows,
            ),
        ),
        infer=_state_type,
        kind=Kind.STRUCTURE,
        is_state=True,
    )
)


# in place


def _has_dims_of_destination(call: Call) -> bool:
    a, b = call.operand(0).dims, call.operand(1).dims
    reason = "assign: source has the dims of destination"
    return len(a) == len(b) and all(call.equal(x, y, reason) for x, y in zip(a, b, strict=True))


def _assign(call: Call, inputs: Sequence[Any]) -> Sequence[Array]:
    destination, source = inputs
    destination[...] = source
    return [destination]


ASSIGN = register(
    OpRecord(
        name="assign",
        summary="Writes source over all of destination; the result is destination.",
        operands=(Operand("destination"), Operand("source", same_as="destination")),
        constraints=(Constraint("source has the dims of destination", _has_dims_of_destination),),
        infer=lambda call: [call.operand(0)],
        reference=_assign,
        kind=Kind.STRUCTURE,
        view_of=0,
        writes=(0,),
    )
)


def _write_slice(call: Call, inputs: Sequence[Any]) -> Sequence[Array]:
    destination, update, starts = inputs
    put(destination, update, starts)
    return [destination]


WRITE_SLICE = register(
    OpRecord(
        name="write_slice",
        summary="Writes update into destination from index starts on (moved so far that update "
        "fits); the result is all of destination.",
        operands=(
            Operand("destination"),
            Operand("update", same_as="destination"),
            Operand("starts", I64),
        ),
        constraints=(
            Constraint("update has destination's rank and fits into it", fits_into),
            Constraint("starts has an element a dim of destination", has_start_a_dim),
        ),
        infer=lambda call: [call.operand(0)],
        reference=_write_slice,
        kind=Kind.STRUCTURE,
        view_of=0,
        writes=(0,),
    )
)


# containers


def _tuple_type(call: Call) -> Sequence[TensorType]:
    first = call.operand(0)
    return [TensorType(first.dtype, (len(call.operands), *first.dims))]


def _are_alike(call: Call) -> bool:
    first = call.operand(0)
    return all(
        t is not None
        and len(t.dims) == len(first.dims)
        and all(
            call.equal(a, b, "tuple: elements have equal dims")
            for a, b in zip(t.dims, first.dims, strict=True)
        )
        for t in call.operands
    )


TUPLE = register(
    OpRecord(
        name="tuple",
        summary="A tensor whose rows are its operands themselves, not copies of them.",
        operands=(Operand("elements", ANY, "variadic"),),
        constraints=(Constraint("elements have equal dims", _are_alike),),
        infer=_tuple_type,
        reference=lambda call, inputs: [np.stack(inputs)],
        kind=Kind.STRUCTURE,
        container="holds",
        unsupported="a tuple that is written, or whose rows are chosen at run time; take rows at "
        "known positions, or join copies (concat)",
    )
)


def _row(call: Call, inputs: Sequence[Any]) -> Sequence[Array]:
    x, index = inputs
    if x.shape[0] == 0:
        raise call.error("x has no rows")
    return [x[min(max(int(index), 0), x.shape[0] - 1)]]


GET = register(
    OpRecord(
        name="get",
        summary="Row index of x, as a view (index moved so far that it is one).",
        operands=(Operand("x"), Operand("index", I64)),
        constraints=(
            Constraint("x has a dim", lambda call: call.operand(0).rank > 0),
            _is_scalar(1),
        ),
        infer=lambda call: [TensorType(call.operand(0).dtype, call.operand(0).dims[1:])],
        reference=_row,
        kind=Kind.STRUCTURE,
        view_of=0,
        container="opens",
        unsupported="rows that are chosen at run time, as views; gather copies them",
    )
)
