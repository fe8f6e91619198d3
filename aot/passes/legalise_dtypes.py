"""legalise-dtypes: the program computes in element types that the target computes in.

Every target loads, stores and casts all dtypes, but f64 only where it computes in it; what it does
arithmetic in is its `dtypes`.

Requires: no regions and no executables yet.
Ensures: no op but casts, movements, views, constants and shapes has an operand or a result of a
    dtype that the target does not compute.
    Where the wide ones (i64, u64, f64) lack, every value inside a function is i32, u32 or f32, with
    casts behind the inputs and before the results, which keep their types; integers are taken to
    fit, and a constant that does not fit is an error unless its reader clamps anyway. A finite f64
    constant beyond f32 becomes the largest f32.
    Where the narrow ones (f16, i8, i16, u8, u16) lack, each op that computes in one casts its
    operands to f32, i32 or u32 and its results back: rounding and wrapping stay what they were.
Never: changes the types of a function's inputs and results, or bool, which is a byte in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aot.errors import InternalError, UnsupportedError
from aot.ir import expr
from aot.ir.core import Attr, ConstantData, Function, Module, Op, Rewriter, Value
from aot.ir.types import DType, TensorType
from aot.ops.elementwise import CAST
from aot.ops.record import Kind, call_of
from aot.passes.base import Pass, PassContext

DTypes = Mapping[DType, DType]

NARROWER: DTypes = {DType.I64: DType.I32, DType.U64: DType.U32, DType.F64: DType.F32}
WIDER: DTypes = {
    DType.F16: DType.F32,
    DType.I8: DType.I32,
    DType.I16: DType.I32,
    DType.U8: DType.U32,
    DType.U16: DType.U32,
}
_FREE_KINDS = frozenset({Kind.STRUCTURE, Kind.VIEW, Kind.MOVEMENT, Kind.SHAPE})


def run(module: Module, context: PassContext) -> None:
    target = context.target
    if target is None:
        return
    narrow = {d: n for d, n in NARROWER.items() if not target.computes(d)}
    widen = {d: w for d, w in WIDER.items() if not target.computes(d)}
    for function in module.functions.values():
        if any(op.blocks or op.record.results_from != "rule" for op in function.walk()):
            raise InternalError("legalise-dtypes runs before dispatch regions are formed")
        if narrow:
            _Narrowing(function, narrow, target.name).run()
        if widen:
            _widen(function, widen)
        _refuse_wide_functions(function)
        if not target.computes(DType.F64):
            _refuse_wide_interface(function, target.name)


def _refuse_wide_interface(function: Function, target: str) -> None:
    """A target that does not compute in f64 has no way to load, store or cast it either.

    Raises:
        UnsupportedError: lists the inputs and results that are f64.
    """
    named = [
        *((f"input {v.name!r}", v) for v in function.inputs if v.uses),
        *(
            (f"output {name!r}", v)
            for name, v in zip(function.result_names, function.results, strict=True)
        ),
    ]
    problems = [f"{what} is {value.type}" for what, value in named if value.type.dtype is DType.F64]
    if problems:
        raise UnsupportedError(
            f"target {target} has no f64; export the model in float32:", problems
        )


def _refuse_wide_functions(function: Function) -> None:
    """Transcendental functions of f64 have no formula yet.

    Raises:
        UnsupportedError: lists every node that needs one.
    """
    problems = [
        f"{op.name} of f64 (node {op.origin!r})"
        for op in function.walk()
        if any(t is not None and t.dtype is DType.F64 for t in op.operand_types)
        and _is_transcendental(op)
    ]
    if problems:
        raise UnsupportedError(
            "these need functions that there are in 32 bits only; export the model in float32:",
            problems,
        )


def _is_transcendental(op: Op) -> bool:
    if op.record.compute is None:
        return op.record.kind is Kind.RECURRENCE
    return any(
        isinstance(node, (expr.Unary, expr.Binary)) and node.op in expr.TRANSCENDENTAL_OPS
        for compute in op.record.compute(call_of(op))
        for node in expr.nodes(compute.value)
    )


def computes(op: Op) -> bool:
    """Whether `op` does arithmetic in its operands' or results' dtypes."""
    return op.record.kind not in _FREE_KINDS and op.record is not CAST


def _cast(rewriter: Rewriter, value: Value, to: DType, origin: str) -> Value:
    return rewriter.create(CAST, [value], {"to": to}, origin).result


class _Narrowing:
    """Makes a second function inside the first, in narrower dtypes, and removes the first."""

    def __init__(self, function: Function, dtypes: DTypes, target: str) -> None:
        self.function = function
        self.dtypes = dtypes
        self.target = target
        self.values: dict[Value, Value] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        function = self.function
        order = list(function.block)
        start = Rewriter(function, function.block, function.block.first)
        for value in function.inputs:
            narrow = self.dtypes.get(value.type.dtype)
            if narrow is not None and value.uses:
                self.values[value] = _cast(start, value, narrow, "")
        for op in order:
            if op.record.is_terminator:
                self.end(op)
            elif self.is_touched(op):
                self.rebuild(op)
        if self.problems:
            raise UnsupportedError(
                f"target {self.target} computes in "
                f"{', '.join(map(str, self.dtypes.values()))} only, and these "
                "constants do not fit:",
                self.problems,
            )
        for op in reversed(order):
            if op.results and all(v in self.values for v in op.results):
                Rewriter(function).erase(op)

    def is_touched(self, op: Op) -> bool:
        if not op.operands and all(u.record.is_terminator for v in op.results for u in v.users):
            return False  # known, and computed with nowhere
        return any(v in self.values for v in op.operands if v is not None) or any(
            v.type.dtype in self.dtypes for v in op.results
        )

    def rebuild(self, op: Op) -> None:
        """Makes `op` anew on narrow operands and with narrow results."""
        rewriter = Rewriter(self.function).at(op)
        attrs = {name: self.attr(value, op) for name, value in op.attrs.items()}
        operands = [self.operand(op, number, rewriter) for number in range(len(op.operands))]
        made = rewriter.create(op.record, operands, attrs, op.origin)
        for old, fresh in zip(op.results, made.results, strict=True):
            fresh.name = old.name
            narrow = self.dtypes.get(fresh.type.dtype)
            # ops such as shape_of have one dtype whatever their operands
            self.values[old] = (
                fresh if narrow is None else _cast(rewriter, fresh, narrow, op.origin)
            )

    def operand(self, op: Op, number: int, rewriter: Rewriter) -> Value | None:
        value = op.operands[number]
        if value is None or value not in self.values:
            return value
        fresh = self.values[value]
        spec = op.record.operands[min(number, len(op.record.operands) - 1)]
        if fresh.type.dtype in spec.dtypes:
            return fresh
        return _cast(rewriter, fresh, value.type.dtype, op.origin)

    def attr(self, value: Attr, op: Op) -> Attr:
        if isinstance(value, DType):
            return self.dtypes.get(value, value)
        if isinstance(value, ConstantData) and value.type.dtype in self.dtypes:
            return self.data(value, op)
        return value

    def data(self, data: ConstantData, op: Op) -> ConstantData:
        """The contents in the narrow dtype, clamped to what it holds."""
        narrow = self.dtypes[data.type.dtype]
        array = data.array
        if narrow.is_float:
            limit = np.finfo(narrow.numpy).max
            clamped = np.where(np.isfinite(array), np.clip(array, -limit, limit), array)
        else:
            info = np.iinfo(narrow.numpy)
            clamped = np.clip(array, info.min, info.max)
            if (clamped != array).any() and not all(
                _clamps(user, number) for user, number in op.result.uses
            ):
                bad = array[clamped != array].reshape(-1)[0]
                self.problems.append(
                    f"{bad} as {narrow} in {op.name}"
                    + (f" (node {op.origin!r})" if op.origin else "")
                )
        type = TensorType(narrow, data.type.dims, data.type.layout)
        return ConstantData(clamped.astype(narrow.numpy), type)

    def end(self, op: Op) -> None:
        """Casts results back to the types that they have outside."""
        rewriter = Rewriter(self.function).at(op)
        for number, value in enumerate(op.operands):
            # an input that is a result passes through as it is
            if value is None or value not in self.values or value.op is None:
                continue
            fresh = self.values[value]
            if fresh.type.dtype is not value.type.dtype:
                fresh = _cast(rewriter, fresh, value.type.dtype, "")
            rewriter.set_operand(op, number, fresh)


def _clamps(op: Op, number: int) -> bool:
    """Whether a number too large for the dtype means to `op` what the largest one means."""
    return op.record.operands[min(number, len(op.record.operands) - 1)].clamps


def _widen(function: Function, dtypes: DTypes) -> None:
    """Surrounds each op that computes in one of `dtypes` by casts."""
    for op in list(function.block):
        types = [v.type for v in (*op.operands, *op.results) if v is not None]
        if not computes(op) or not any(t.dtype in dtypes for t in types):
            continue
        rewriter = Rewriter(function).at(op)
        operands: list[Value | None] = []
        for value in op.operands:
            wide = None if value is None else dtypes.get(value.type.dtype)
            operands.append(
                value if value is None or wide is None else _cast(rewriter, value, wide, op.origin)
            )
        made = rewriter.create(op.record, operands, op.attrs, op.origin)
        results = [
            fresh if fresh.type == old.type else _cast(rewriter, fresh, old.type.dtype, op.origin)
            for old, fresh in zip(op.results, made.results, strict=True)
        ]
        rewriter.replace_op(op, results)


LEGALISE_DTYPES = Pass("legalise-dtypes", run, __doc__)
