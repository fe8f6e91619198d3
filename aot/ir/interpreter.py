"""The reference interpreter: any function in numpy, by the ops' own reference semantics.

The oracle for every pass and backend, at every stage of the pipeline. Values are logical arrays
whatever their layouts. Slow by design; never used to run a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aot.errors import AotError, CompileError, InternalError
from aot.ir.compare import map_dims
from aot.ir.core import Block, Function, FunctionRef, Module, Op, Value, walk
from aot.ir.dims import Dim, DimExpr, Symbol, evaluate, substitute
from aot.ir.text import print_op
from aot.ir.types import DType, TensorType
from aot.ops.record import Array, Call

Inputs = Sequence[Any] | Mapping[str, Any]


def run(
    function: Function,
    inputs: Inputs,
    *,
    symbols: Mapping[str, int] | None = None,
    is_exact: bool = False,
    module: Module | None = None,
) -> list[Array]:
    """The function's results for `inputs`.

    Args:
        inputs: arrays in order, or by input name. Dtypes must be exact.
        symbols: values of symbols that no input's shape determines.
        is_exact: references sum in a fixed order, the same on every machine.
        module: where ops that run a function by name find it.

    Raises:
        CompileError: an input is missing or has a wrong dtype or shape, a symbol has no value, or
            an assumption does not hold.
        InternalError: an op's reference fails or gives what its type does not say.
    """
    arrays = _arrays(function, inputs)
    values = bind_symbols(function, [a.shape for a in arrays], symbols)
    for value, array in zip(function.inputs, arrays, strict=True):
        if DType.of(array) is not value.type.dtype:
            raise CompileError(
                f"input {_input_name(value)} is {DType.of(array)}, expected {value.type.dtype}"
            )
    with np.errstate(all="ignore"):
        return _Frame(function, values, is_exact, module).run(function.block, arrays)


def _arrays(function: Function, inputs: Inputs) -> list[Array]:
    if isinstance(inputs, Mapping):
        names = [v.name for v in function.inputs]
        unknown = sorted(set(inputs) - set(names))
        if unknown:
            raise CompileError(f"there is no input {unknown[0]!r}, expected {_listed(names)}")
        missing = [n for n in names if n not in inputs]
        if missing:
            raise CompileError(f"input {missing[0]!r} is missing, expected {_listed(names)}")
        inputs = [inputs[n] for n in names]
    if len(inputs) != len(function.inputs):
        raise CompileError(
            f"function {function.name!r} has {len(function.inputs)} inputs, {len(inputs)} are given"
        )
    return [np.asarray(a) for a in inputs]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(n) for n in names) or "none"


def _input_name(value: Value) -> str:
    return repr(value.name) if value.name else str(value.index)


def bind_symbols(
    function: Function, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """What the function's symbols are when its inputs have `shapes`; all of them are checked.

    Raises:
        CompileError: a shape does not fit, a symbol stays unknown, or an assumption is false.
    """
    values: dict[str, int] = dict(given or {})
    pending: list[tuple[Value, int, int]] = []
    for value, shape in zip(function.inputs, shapes, strict=True):
        if len(shape) != value.type.rank:
            raise _shape_error(value, shape, f"it has {len(shape)} dims, not {value.type.rank}")
        pending += [(value, axis, extent) for axis, extent in enumerate(shape)]
    is_progress = True
    while is_progress:
        count = len(pending)
        pending = [p for p in pending if not _solve(p, shapes, values)]
        is_progress = len(pending) < count
    for value, axis, extent in pending:
        _check_dim(value, axis, extent, shapes, values)
    for assumption in function.assumptions:
        left, right = (_number(d, values) for d in (assumption.left, assumption.right))
        if left != right:
            raise CompileError(
                f"{assumption.reason}: {assumption.left} is {left}, "
                f"{assumption.right} is {right}, they must be equal"
            )
    return values


def _shape_error(value: Value, shape: tuple[int, ...], why: str) -> CompileError:
    dims = ", ".join(map(str, value.type.dims))
    found = ", ".join(map(str, shape))
    return CompileError(f"input {_input_name(value)} has shape ({found}), expected ({dims}): {why}")


def _solve(
    item: tuple[Value, int, int], shapes: Sequence[tuple[int, ...]], values: dict[str, int]
) -> bool:
    """Takes what one extent says of a symbol, or checks it; False if it must wait."""
    value, axis, extent = item
    dim = substitute(value.type.dims[axis], values)
    if isinstance(dim, int):
        _check_dim(value, axis, extent, shapes, values)
        return True
    found = solve_linear(dim, extent)
    if found is None:
        return False
    name, number = found
    if not isinstance(number, int) or number < 0:
        raise _shape_error(
            value,
            shapes[value.index],
            f"no {name} makes dim {axis} ({value.type.dims[axis]}) {extent}",
        )
    values[name] = number
    return True


def solve_linear(dim: Dim, extent: int) -> tuple[str, int | None] | None:
    """The symbol that `dim == extent` determines and its value, None for no whole number.

    Only a dim `a * symbol + b` determines one; for others the answer is None.
    """
    if not isinstance(dim, DimExpr) or len(dim.terms) != 1:
        return None
    monomial, coefficient = dim.terms[0]
    if len(monomial) != 1 or not isinstance(monomial[0], Symbol):
        return None
    quotient, rest = divmod(extent - dim.constant, coefficient)
    return monomial[0].name, None if rest else quotient


def _check_dim(
    value: Value,
    axis: int,
    extent: int,
    shapes: Sequence[tuple[int, ...]],
    values: Mapping[str, int],
) -> None:
    dim = value.type.dims[axis]
    wanted = _number(dim, values)
    if wanted != extent:
        known = f" ({dim})" if isinstance(dim, DimExpr) else ""
        raise _shape_error(
            value, shapes[value.index], f"dim {axis} is {extent}, not {wanted}{known}"
        )


def _number(dim: Dim, values: Mapping[str, int]) -> int:
    try:
        return evaluate(dim, values)
    except KeyError as missing:
        raise CompileError(
            f"symbol {missing.args[0]} has no value: no input's shape determines it"
        ) from None
    except ZeroDivisionError:
        raise CompileError(f"dim {dim} divides by zero") from None


class _Frame:
    """One function's run: its symbols' values, and arrays of the values that are alive."""

    def __init__(
        self, function: Function, symbols: Mapping[str, int], is_exact: bool, module: Module | None
    ) -> None:
        self.function = function
        self.symbols = symbols
        self.is_exact = is_exact
        self.module = module
        self.env: dict[Value, Array] = {}

    def run(self, block: Block, arguments: Sequence[Array]) -> list[Array]:
        """Results that the block's terminator names."""
        self.env.update(zip(block.args, arguments, strict=True))
        dying = _last_uses(block)
        for op in block:
            operands = [None if v is None else self.env[v] for v in op.operands]
            if op.record.is_terminator:
                return [a for a in operands if a is not None]
            for value, result in zip(op.results, self.evaluate(op, operands), strict=True):
                if value.uses:
                    self.env[value] = result
            for value in dying.get(op, ()):
                self.env.pop(value, None)
        raise InternalError(f"a block of function {self.function.name!r} has no terminator")

    def evaluate(self, op: Op, operands: Sequence[Array | None]) -> list[Array]:
        source = op.record.results_from
        if source == "block":
            results = self.run(op.blocks[0], [a for a in operands if a is not None])
        elif source == "callee":
            results = self.call(op, operands)
        else:
            results = self.refer(op, operands)
        for value, result in zip(op.results, results, strict=True):
            self.check(op, value, result)
        return results

    def call(self, op: Op, operands: Sequence[Array | None]) -> list[Array]:
        """Runs the function that `op` names."""
        reference, given = op.attrs["executable"], op.attrs["dims"]
        if self.module is None or not isinstance(reference, FunctionRef):
            raise InternalError(f"no module is given to find the function in\n  {print_op(op)}")
        assert isinstance(given, tuple)
        callee = self.module.functions[reference.name]
        numbers = [_number(d, self.symbols) for d in given if isinstance(d, (int, DimExpr))]
        symbols = dict(zip(callee.dim_names, numbers, strict=True))
        return run(
            callee, list(operands), symbols=symbols, is_exact=self.is_exact, module=self.module
        )

    def refer(self, op: Op, operands: Sequence[Array | None]) -> list[Array]:
        """The record's reference, on types and attributes whose dims are numbers."""
        reference = op.record.reference
        if reference is None:
            raise InternalError(f"op {op.name} has no reference semantics\n  {print_op(op)}")
        call = Call(
            op.record,
            tuple(None if t is None else self.concrete(t) for t in op.operand_types),
            map_dims(op.attrs, lambda d: _number(d, self.symbols)),
            op.origin,
            result_types=tuple(self.concrete(v.type) for v in op.results),
            is_exact=self.is_exact,
        )
        try:
            return [np.asarray(a) for a in reference(call, operands)]
        except AotError:
            raise
        except Exception as failure:
            raise InternalError(
                f"the reference of {op.name} failed: {failure}\n  {print_op(op)}"
            ) from failure

    def concrete(self, type: TensorType) -> TensorType:
        if type.is_static:
            return type
        return TensorType(
            type.dtype, tuple(_number(d, self.symbols) for d in type.dims), type.layout
        )

    def check(self, op: Op, value: Value, array: Array) -> None:
        wanted = self.concrete(value.type)
        if array.dtype != wanted.dtype.numpy or array.shape != wanted.dims:
            raise InternalError(
                f"result {value.index} of {op.name} is {array.dtype} of shape "
                f"{array.shape}, its type says {wanted}\n  {print_op(op)}"
            )


def _last_uses(block: Block) -> dict[Op, list[Value]]:
    """Per op of the block, the block's own values that nothing needs after it."""
    seen: set[Value] = set()
    dying: dict[Op, list[Value]] = {}
    for op in reversed(block):
        inner = [i for b in op.blocks for i in walk(b)]
        for user in (op, *inner):
            for value in user.operands:
                if value is None or value in seen:
                    continue
                home = value.owner.parent if isinstance(value.owner, Op) else value.owner
                if home is block:
                    seen.add(value)
                    dying.setdefault(op, []).append(value)
    return dying
