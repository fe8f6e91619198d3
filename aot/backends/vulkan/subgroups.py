"""Reductions over all lanes of a workgroup, by subgroup operations.

Each subgroup combines its own lanes; what they come to is combined over shared memory, an element a
subgroup, so that no size of subgroups is assumed and one barrier is enough. A float's extremum is
one of integers in the same order, NaN last: drivers may drop a NaN otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.backends.vulkan.assembler import FunctionBody
from aot.backends.vulkan.expressions import Expressions
from aot.backends.vulkan.memory import Memory
from aot.backends.vulkan.spirv import (
    GROUP_OPERATION_REDUCE,
    BuiltIn,
    Capability,
    Glsl,
    Op,
    Scope,
)
from aot.backends.vulkan.values import Values
from aot.errors import InternalError
from aot.ir.types import DType
from aot.kernels.ir.nodes import Barrier, Combine

_FLOAT = {"add": (Op.GROUP_NON_UNIFORM_F_ADD, Op.F_ADD)}
_FLOAT["mul"] = (Op.GROUP_NON_UNIFORM_F_MUL, Op.F_MUL)
_INTEGER = {"add": (Op.GROUP_NON_UNIFORM_I_ADD, Op.I_ADD)}
_INTEGER["mul"] = (Op.GROUP_NON_UNIFORM_I_MUL, Op.I_MUL)
_SIGNED = {"min": Op.GROUP_NON_UNIFORM_S_MIN, "max": Op.GROUP_NON_UNIFORM_S_MAX}
_UNSIGNED = {
    "min": (Op.GROUP_NON_UNIFORM_U_MIN, Glsl.U_MIN),
    "max": (Op.GROUP_NON_UNIFORM_U_MAX, Glsl.U_MAX),
}
_SIGN = 0x80000000


def combine(
    stmt: Combine,
    expressions: Expressions,
    memory: Memory,
    body: FunctionBody,
    barrier: Callable[[Barrier], None],
) -> None:
    """Emits the statement; `expressions` knows the lane's number, and the result afterwards."""
    values = expressions.values
    asm = values.asm
    asm.capability(Capability.GROUP_NON_UNIFORM)
    asm.capability(Capability.GROUP_NON_UNIFORM_ARITHMETIC)
    is_ordered = stmt.result.dtype is DType.F32 and stmt.op in ("min", "max")
    if stmt.shared.dtype is not (DType.U32 if is_ordered else stmt.result.dtype):
        raise InternalError(f"{stmt.shared.name} is {stmt.shared.dtype}, for {stmt.result.dtype}")
    own = expressions.scalar(stmt.value)
    if is_ordered:
        own = _in_order(values, expressions, own, stmt.op)
    scope = values.u32(Scope.SUBGROUP)
    type = asm.f32 if stmt.shared.dtype is DType.F32 else asm.u32
    group_op = _group_op(stmt.op, stmt.shared.dtype)
    part = values.define(body.result(group_op, type, scope, GROUP_OPERATION_REDUCE, own))
    number = values.pure(Op.LOAD, asm.u32, asm.builtin(BuiltIn.SUBGROUP_ID))
    values.remember(number, (0, stmt.extent - 1))
    is_one = values.define(body.result(Op.GROUP_NON_UNIFORM_ELECT, asm.boolean, scope))
    values.open_scope(is_one)
    selection = body.open_if(is_one, has_else=False)
    memory.store_scratch(stmt.shared, [values.atom(number)], part)
    body.close_if(selection)
    values.close_scope()
    barrier(Barrier())
    total = _over_subgroups(stmt, values, memory, body, type)
    expressions.environment[stmt.result] = _float_of(values, total) if is_ordered else total


def _over_subgroups(
    stmt: Combine, values: Values, memory: Memory, body: FunctionBody, type: int
) -> int:
    """Emits the reduction of the subgroups' partial results, which are in shared memory."""
    asm = values.asm
    count = values.pure(Op.LOAD, asm.u32, asm.builtin(BuiltIn.NUM_SUBGROUPS))
    first = memory.load_scratch(stmt.shared, [values.atom(values.u32(0))], None)
    opened = body.open_loop([(asm.u32, values.u32(1)), (type, first)])
    counter, so_far = (phi.id for phi in opened.phis)
    values.open_scope()
    values.define(counter, (0, stmt.extent - 1))
    values.define(so_far)
    more = body.result(Op.U_LESS_THAN, asm.boolean, counter, count)
    body.begin_body(opened, more)
    memory.changed()
    one = memory.load_scratch(stmt.shared, [values.atom(counter)], None)
    both = _both(values, stmt.op, stmt.shared.dtype, so_far, one)
    following = body.result(Op.I_ADD, asm.u32, counter, values.u32(1))
    body.close_loop(opened, [following, both])
    values.close_scope()
    memory.changed()
    return values.define(so_far)


def _group_op(op: str, dtype: DType) -> Op:
    if dtype is DType.F32:
        return _FLOAT[op][0]
    if op in _INTEGER:
        return _INTEGER[op][0]
    return _SIGNED[op] if dtype.is_signed else _UNSIGNED[op][0]


def _both(values: Values, op: str, dtype: DType, a: int, b: int) -> int:
    if dtype is DType.F32:
        return values.pure(_FLOAT[op][1], values.asm.f32, a, b)
    if op in _INTEGER:
        return values.pure(_INTEGER[op][1], values.asm.u32, a, b)
    if dtype.is_signed:
        return values.signed_extremum(a, b, is_max=op == "max")
    return values.glsl(_UNSIGNED[op][1], values.asm.u32, a, b)


def _in_order(values: Values, expressions: Expressions, number: int, op: str) -> int:
    """An f32 as an integer that is in its order among others; a NaN is what wins."""
    u32, pure = values.asm.u32, values.pure
    bits = pure(Op.BITCAST, u32, number)
    sign = pure(Op.SHIFT_RIGHT_ARITHMETIC, u32, bits, values.u32(31))
    flips = pure(Op.BITWISE_OR, u32, sign, values.u32(_SIGN))
    ordered = pure(Op.BITWISE_XOR, u32, bits, flips)
    winner = values.u32(0xFFFFFFFF if op == "max" else 0)
    return values.select(u32, expressions.is_nan(number), winner, ordered)


def _float_of(values: Values, ordered: int) -> int:
    """The f32 that `_in_order` made an integer of; its two winners are NaNs."""
    u32, pure = values.asm.u32, values.pure
    is_positive = pure(Op.SHIFT_RIGHT_ARITHMETIC, u32, ordered, values.u32(31))
    flips = pure(Op.BITWISE_OR, u32, pure(Op.NOT, u32, is_positive), values.u32(_SIGN))
    return pure(Op.BITCAST, values.asm.f32, pure(Op.BITWISE_XOR, u32, ordered, flips))
