"""The reference interpreter: runs any function in numpy, by the ops' reference semantics.

The oracle for every pass and backend, at every stage of the pipeline. Values are logical arrays
whatever their layouts. Slow by design; never used to run a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from aot.errors import AotError, CompileError, InternalError
from aot.ir.body import Body
from aot.ir.builtin import EXTENT
from aot.ir.compare import map_dims
from aot.ir.data_dims import assumptions_by_last
from aot.ir.dims import Dim, DimExpr, Symbol, evaluate, substitute
from aot.ir.graph import Assumption, Block, Function, FunctionRef, Module, Op, Value, walk
from aot.ir.interpreter.memory import Place, States, is_about_memory, state_place
from aot.ir.loops import most_runs, too_many_runs
from aot.ir.record import Call
from aot.ir.states import StateVariable, state_variables
from aot.ir.text.printer import print_op
from aot.ir.types import Array, DType, TensorType

Inputs = Sequence[Any] | Mapping[str, Any]


class Disturbance(Protocol):
    """Perturbs the operands and results of ops, to study the effect."""

    def before(self, op: Op, operands: Sequence[Array | None]) -> Sequence[Array | None]:
        """The arrays to use in place of `op`'s operands."""

    def after(self, op: Op, results: list[Array]) -> list[Array]:
        """The arrays to use in place of `op`'s results."""


def run(
    function: Function,
    inputs: Inputs,
    *,
    symbols: Mapping[str, int] | None = None,
    is_exact: bool = False,
    module: Module | None = None,
    states: States | None = None,
    disturbance: Disturbance | None = None,
) -> list[Array]:
    """The function's results for `inputs`.

    Inputs that the function writes in place are written in the arrays that are given, where these
    can be: contiguous numpy arrays of exact dtype.

    Args:
        inputs: arrays in order, or by input name. Dtypes must be exact.
        symbols: values of symbols that no input's shape determines.
        is_exact: references sum in a fixed order, the same on every machine.
        module: where ops that run a function by name find it.
        states: memory of state variables by name, kept between runs; without it they start at zero.
            Clearing it is a reset.
        disturbance: changes what ops that have a reference read and give.

    Raises:
        CompileError: an input is missing or has a wrong dtype or shape, a symbol has no value, an
            assumption does not hold, or a growing state is full.
        InternalError: an op's reference fails or gives what its type does not say.
    """
    arrays = _arrays(function, inputs)
    states = {} if states is None else states
    growing = [v for v in state_variables(function) if v.length is not None]
    lengths = _lengths(growing, states)
    values = bind_symbols(function, [a.shape for a in arrays], {**(symbols or {}), **lengths})
    following = _next_lengths(growing, values)
    for value, array in zip(function.inputs, arrays, strict=True):
        if DType.of(array) is not value.type.dtype:
            raise CompileError(
                f"input {_input_name(value)} is {DType.of(array)}, expected {value.type.dtype}"
            )
    with np.errstate(all="ignore"):
        if not is_about_memory(function):
            frame = _Frame(function, values, is_exact, module, disturbance)
            return _updated(function, arrays, frame.run(function.block, arrays))
        frame = _MemoryFrame(function, values, is_exact, module, disturbance)
        frame.states = states
        places = frame.run(function.block, [_place(a) for a in arrays])
        for variable in growing:
            states[variable.name].length = following[variable.name]
            _slide(variable, states, _number(variable.leaving, values))
        return _updated(function, arrays, [p.read() for p in places])


def _updated(function: Function, arrays: Sequence[Array], results: list[Array]) -> list[Array]:
    """The results, after writing those that update an input in place to its array."""
    if function.updates:
        results = [np.array(r) for r in results]  # one may be an input's array itself
        inputs = {v.name: a for v, a in zip(function.inputs, arrays, strict=True)}
        for name, result in zip(function.result_names, results, strict=True):
            target = inputs[function.updates[name]] if name in function.updates else None
            if target is not None and target.flags.writeable:
                target[...] = result
    return results


def _lengths(growing: Sequence[StateVariable], states: States) -> dict[str, int]:
    """The values, before a run, of the length symbols of growing states."""
    found: dict[str, int] = {}
    for variable in growing:
        symbol, length = str(variable.length), 0
        if variable.name in states:
            length = states[variable.name].length
        if found.setdefault(symbol, length) != length:
            raise CompileError(
                f"state {variable.name!r} has length {length}, another one of length {symbol} has "
                f"{found[symbol]}"
            )
    return found


def _next_lengths(growing: Sequence[StateVariable], values: Mapping[str, int]) -> dict[str, int]:
    """The lengths after a run, by variable."""
    found: dict[str, int] = {}
    for variable in growing:
        assert variable.next_length is not None
        length = found[variable.name] = _number(variable.next_length, values)
        if length > variable.capacity:
            raise CompileError(variable.full_message(length))
    return found


def _slide(variable: StateVariable, states: States, leaving: int) -> None:
    """Moves the remaining rows of a sliding window to its start."""
    memory, axis = states[variable.name], variable.axis
    if not leaving or axis is None:
        return
    whole = state_place(states, variable.name, variable.type)
    rows = whole.read()
    staying = range(leaving, memory.length)
    memory.length -= leaving
    kept = whole.view(lambda index: index.take(range(memory.length), axis))
    kept.write(rows.take(staying, axis))


def _place(array: Array) -> Place:
    """A place in `array` itself, which must be writable."""
    is_usable = array.flags.c_contiguous and array.flags.writeable
    return Place.of(array if is_usable else np.array(array, order="C"))


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
    """The values of the function's symbols for inputs of these shapes, after checking all shapes.

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
    later = {a for found in assumptions_by_last(function).values() for a in found}
    for assumption in function.assumptions:
        if assumption not in later:
            _check_assumption(assumption, values)
    return values


def _check_assumption(assumption: Assumption, values: Mapping[str, int]) -> None:
    left, right = (_number(d, values) for d in (assumption.left, assumption.right))
    if left != right:
        raise CompileError(
            f"{assumption.reason}: {assumption.left} is {left}, "
            f"{assumption.right} is {right}, they must be equal"
        )


def _shape_error(value: Value, shape: tuple[int, ...], why: str) -> CompileError:
    dims = ", ".join(map(str, value.type.dims))
    found = ", ".join(map(str, shape))
    return CompileError(f"input {_input_name(value)} has shape ({found}), expected ({dims}): {why}")


def _solve(
    item: tuple[Value, int, int], shapes: Sequence[tuple[int, ...]], values: dict[str, int]
) -> bool:
    """Solves for a symbol from one extent, or checks the extent; False if symbols are still
    missing."""
    value, axis, extent = item
    try:
        dim = substitute(value.type.dims[axis], values)
    except ZeroDivisionError:
        raise _divides_by_zero(value.type.dims[axis]) from None
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
    """(symbol, value) that solves `dim == extent`; the value is None if it is no integer. None if
    the dim is not of that form.

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
        raise _divides_by_zero(dim) from None


def _divides_by_zero(dim: Dim) -> CompileError:
    return CompileError(f"dim {dim} divides by zero")


class _Frame:
    """The state of one function's run: values of symbols, and arrays of live values.

    What a value is kept as is `read`'s and `store`'s to know.
    """

    def __init__(
        self,
        function: Function,
        symbols: Mapping[str, int],
        is_exact: bool,
        module: Module | None,
        disturbance: Disturbance | None = None,
    ) -> None:
        self.function = function
        self.symbols = dict(symbols)
        self.later = assumptions_by_last(function)
        self.is_exact = is_exact
        self.module = module
        self.disturbance = disturbance
        self.env: dict[Value, Any] = {}
        self._dying: dict[Block, dict[Op, list[Value]]] = {}

    def read(self, kept: Any) -> Array:
        """The elements of a value, from its representation in the frame."""
        return np.asarray(kept)

    def store(self, array: Array) -> Any:
        """The object that represents a value with these elements in a frame."""
        return array

    def run(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        """Runs a block's ops, and returns the values that its terminator passes on."""
        self.env.update(zip(block.args, arguments, strict=True))
        dying = self._dying.get(block)
        if dying is None:
            dying = self._dying[block] = _last_uses(block)
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

    def evaluate(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        source = op.record.results_from
        if op.record is EXTENT:
            return self.give_extent(op, self.read(operands[0]))
        if source == "block":
            results = self.run_blocks(op, operands)
        elif source == "callee":
            results = self.call(op, operands)
        else:
            results = self.refer(op, operands)
        for value, result in zip(op.results, results, strict=True):
            self.check(op, value, result)
        return results

    def give_extent(self, op: Op, elements: Array) -> list[Any]:
        """Sets the symbol of an `extent` op to its operand."""
        number, dim = int(elements.reshape(())), op.attrs["dim"]
        where = f"{op.origin}: " if op.origin else ""
        if not isinstance(dim, DimExpr):
            if number != dim:
                raise CompileError(f"{where}an extent is {number}, expected {dim}")
            return []
        if number < 0:
            raise CompileError(f"{where}extent {dim} is {number}, which is negative")
        self.symbols[str(dim)] = number
        for assumption in self.later.get(str(dim), ()):
            _check_assumption(assumption, self.symbols)
        return []

    def run_blocks(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        """Runs the blocks of `op` as its `Body` describes."""
        body = op.record.body
        assert body is not None
        given = [a for a in operands[body.first :] if a is not None]
        if body.is_loop:
            return self.run_loop(op, body, operands, given)
        if body.kind == "choice":
            return self.run(op.blocks[0 if self.read(operands[0]) else 1], given)
        return self.run(op.blocks[0], given)

    def run_loop(
        self, op: Op, body: Body, operands: Sequence[Any], carried: Sequence[Any]
    ) -> list[Any]:
        trip_count, condition = operands[:2]
        most = op.attrs[body.stack_dim]
        limits = [_number(most, self.symbols)] if isinstance(most, DimExpr) or most != -1 else []  # type: ignore[arg-type]
        limits += [] if trip_count is None else [int(self.read(trip_count))]
        goes_on = condition is None or bool(self.read(condition))
        stacks = [
            np.zeros(self.concrete(v.type).shape, v.type.dtype.numpy)
            for v in op.results[len(carried) :]
        ]
        values, number = list(carried), 0
        end = most_runs(op, None if trip_count is None else limits[-1])
        while goes_on and all(number < limit for limit in limits):
            if number == end:
                raise CompileError(str(number).join(too_many_runs(op)))
            index = self.store(np.array(number, np.int64))
            goes_on_kept, *yielded = self.run(op.blocks[0], [index, *values])
            goes_on = bool(self.read(goes_on_kept))
            values = yielded[: len(carried)]
            for stack, row in zip(stacks, yielded[len(carried) :], strict=True):
                stack[number] = self.read(row)
            number += 1
        return [*values, *map(self.store, stacks)]

    def callee(self, op: Op) -> tuple[Module, Function]:
        """(module, function) that `op` refers to."""
        reference = next((a for a in op.attrs.values() if isinstance(a, FunctionRef)), None)
        if self.module is None or reference is None:
            raise InternalError(f"no module is given to find the function in\n  {print_op(op)}")
        return self.module, self.module.functions[reference.name]

    def call(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        """Runs the function that `op` calls."""
        _, callee = self.callee(op)
        given = op.attrs.get("dims", ())
        assert isinstance(given, tuple)
        numbers = [_number(d, self.symbols) for d in given if isinstance(d, (int, DimExpr))]
        symbols = dict(zip(callee.dim_names, numbers, strict=True))
        return run(
            callee,
            list(operands),
            symbols=symbols,
            is_exact=self.is_exact,
            module=self.module,
            disturbance=self.disturbance,
        )

    def refer(self, op: Op, operands: Sequence[Array | None]) -> list[Array]:
        """Runs the record's reference implementation, with dims in types and attributes replaced by
        numbers."""
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
        if self.disturbance is not None:
            operands = self.disturbance.before(op, operands)
        try:
            results = [np.asarray(a) for a in reference(call, operands)]
        except AotError:
            raise
        except Exception as failure:
            raise InternalError(
                f"the reference of {op.name} failed: {failure}\n  {print_op(op)}"
            ) from failure
        return results if self.disturbance is None else self.disturbance.after(op, results)

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


class _MemoryFrame(_Frame):
    """A frame in which values are places in memory, so that a write is visible through all
    aliases."""

    states: States

    def read(self, kept: Any) -> Array:
        assert isinstance(kept, Place)
        return kept.read()

    def store(self, array: Array) -> Place:
        return Place.of(np.array(array, order="C"))

    def call(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        if not op.record.has_unknown_effects:
            arrays = [None if p is None else self.read(p) for p in operands]
            return [self.store(a) for a in super().call(op, arrays)]
        module, callee = self.callee(op)
        places = [p for p in operands if p is not None]
        symbols = bind_symbols(callee, [p.shape for p in places])
        frame = _MemoryFrame(callee, symbols, self.is_exact, module, self.disturbance)
        frame.states = self.states
        return frame.run(callee.block, places)

    def refer(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        record, view_of = op.record, op.record.view_of
        if record.is_state:
            type = self.concrete(op.result.type)
            return [state_place(self.states, str(op.attrs["variable"]), type)]
        if record.container in ("holds", "joins"):
            join = super().refer
            return [Place.joined(operands, lambda arrays: join(op, arrays)[0])]
        arrays = [None if p is None else self.read(p) for p in operands]
        refer = super().refer
        if view_of is not None and not record.writes:

            def choose(index: Array) -> Array:
                given = [index if n == view_of else a for n, a in enumerate(arrays)]
                return refer(op, given)[0]

            return [operands[view_of].view(choose)]
        results = [self.store(a) for a in refer(op, arrays)]
        for number in record.writes:
            written = arrays[number]
            assert written is not None
            operands[number].write(written)
        return results if view_of is None else [operands[view_of]]


def _last_uses(block: Block) -> dict[Op, list[Value]]:
    """For each op of a block, the block's own values that are not used after it."""
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
