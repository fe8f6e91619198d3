"""bind-state: turns an input and an output that the user ties into a state, kept between runs.

Requires: shapes and values are bound; each tie names an input and an output of one entry point.
Ensures: a tied input is a `state` op and no input any more, a tied output is no result any more but
    assigned to the state by the last ops of the function. A growing state shows its length before
    the run, and its memory has the capacity; that it is not exceeded is an assumption. What the
    function returns never shows memory that is assigned.
Never: changes what a run computes from given states, or an input or output that is not tied.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir.dims import Dim, DimExpr, add, bounds, minimum, multiply, symbols
from aot.ir.equalities import DimEqualities, difference
from aot.ir.graph import Assumption, Attr, Function, Module, Op, Value
from aot.ir.record import OpRecord
from aot.ir.rewriter import Rewriter
from aot.ir.types import Layout
from aot.ops import lookup
from aot.options import Tie
from aot.passes.base import Pass, PassContext

CONCAT: OpRecord = lookup("concat")
KEEP = "?"


def run(module: Module, context: PassContext) -> None:
    bind_states(module, context.options.states)


def bind_states(module: Module, states: Mapping[str, tuple[str, int] | Tie]) -> None:
    """Ties inputs of entry points to their outputs, as states.

    Args:
        states: input name -> (output name, capacity of the dim that grows, or 0), and what else a
            `Tie` says.

    Raises:
        CompileError: there is no such input or output, or the two can't be one memory; with what
            to do.
    """
    known = list(dict.fromkeys(v.name for f in module.entry_points for v in f.inputs))
    for name in states:
        if name not in known:
            listed = ", ".join(map(repr, known)) or "none"
            raise CompileError(f"state {name!r}: there is no input {name!r}, expected {listed}")
    for function in module.entry_points:
        ties = [_tie(function, v, *states[v.name]) for v in function.inputs if v.name in states]
        if ties:
            _check_together(ties)
            _Binder(function, ties).run()


@dataclass(frozen=True)
class _Tie:
    """An input and an output that share one state's memory.

    Attributes:
        number: of the output.
        axis: the dim that grows; None if none does.
        growth: by how much.
        window: rows that stay of a long one; 0 is all.
    """

    past: Value
    present: Value
    number: int
    capacity: int
    axis: int | None
    growth: Dim
    window: int = 0

    @property
    def name(self) -> str:
        return self.past.name

    @property
    def length(self) -> Dim:
        assert self.axis is not None
        return self.past.type.dims[self.axis]


def _error(name: str, message: str) -> CompileError:
    return CompileError(f"state {name!r}: {message}")


def _tie(function: Function, past: Value, output: str, capacity: int = 0, window: int = 0) -> _Tie:
    name = past.name
    if output not in function.result_names:
        listed = ", ".join(map(repr, function.result_names)) or "none"
        raise _error(name, f"there is no output {output!r}, expected {listed}")
    number = function.result_names.index(output)
    present = function.results[number]
    axis = _growing_axis(function, past, present, output)
    if axis is None:
        if capacity:
            raise _error(
                name,
                f"max={capacity} is given, but output {output!r} is as large as the input, "
                f"{past.type}: leave it out",
            )
        _check_static(past, None)
        return _Tie(past, present, number, 0, None, 0)
    growth = difference(present.type.dims[axis], past.type.dims[axis])
    _check_static(past, axis)
    if not capacity:
        raise _error(
            name,
            f"dim {axis} of output {output!r} is {present.type.dims[axis]}, where the input has "
            f"{past.type.dims[axis]}: say how long it may become: {name}={output}:max=N",
        )
    if isinstance(growth, int) and growth > capacity:
        raise _error(name, f"max={capacity} is less than what one run adds, {growth}")
    _check_concat(past, present, output, axis)
    return _Tie(past, present, number, capacity, axis, growth, window)


def _growing_axis(function: Function, past: Value, present: Value, output: str) -> int | None:
    """The dim along which the output is longer than the input; None if they have equal dims."""
    before, after = past.type, present.type
    if before.dtype is not after.dtype or before.rank != after.rank:
        raise _error(past.name, f"the input is {before}, output {output!r} is {after}")
    known = DimEqualities(function.assumptions)
    axes = [
        axis
        for axis, (a, b) in enumerate(zip(before.dims, after.dims, strict=True))
        if not known.are_equal(a, b)
    ]
    for axis in axes:
        low, _ = bounds(difference(after.dims[axis], before.dims[axis]), {})
        if low is None or low < 0:
            raise _error(
                past.name,
                f"the input is {before}, output {output!r} is {after}: dim {axis} differs",
            )
    if len(axes) > 1:
        raise _error(
            past.name,
            f"the input is {before}, output {output!r} is {after}: it grows in dims "
            f"{', '.join(map(str, axes))}, expected one",
        )
    if axes and not _is_symbol(before.dims[axes[0]]):
        raise _error(
            past.name,
            f"dim {axes[0]} is {before.dims[axes[0]]} and grows to {after.dims[axes[0]]}: leave "
            "the input's dim open, under a name of its own",
        )
    return axes[0] if axes else None


def _is_symbol(dim: Dim) -> bool:
    return isinstance(dim, DimExpr) and {str(dim)} == symbols(dim)


def _check_static(past: Value, axis: int | None) -> None:
    """Checks that a state's size is known: all its dims are numbers, except the growing one."""
    dims = past.type.dims
    open_dims = [d for a, d in enumerate(dims) if a != axis and isinstance(d, DimExpr)]
    if open_dims:
        shape = [
            KEEP if a == axis else "1" if isinstance(d, DimExpr) else str(d)
            for a, d in enumerate(dims)
        ]
        example = shlex.quote(f"{past.name}={'x'.join(shape)}")
        raise _error(
            past.name,
            f"dim {dims.index(open_dims[0])} is {open_dims[0]}, which must be a number in memory "
            f"that is kept: bind it, as in --input-shape {example}",
        )


def _check_concat(past: Value, present: Value, output: str, axis: int) -> None:
    op = present.op
    is_concat = op is not None and op.record is CONCAT and op.attrs["axis"] == axis
    if op is None or not is_concat or op.operands[0] is not past:
        made = "an input" if op is None else f"{op.name} (node {op.origin!r})"
        raise _error(
            past.name,
            f"output {output!r} is made by {made}; what grows must be a concat along dim {axis} "
            f"with the input {past.name!r} first",
        )


def _check_together(ties: Sequence[_Tie]) -> None:
    """Checks that each output is tied once, and that states with the same length symbol grow
    equally."""
    by_output: dict[int, _Tie] = {}
    by_length: dict[Dim, _Tie] = {}
    for tie in ties:
        other = by_output.setdefault(tie.number, tie)
        if other is not tie:
            raise _error(tie.name, f"its output is that of state {other.name!r} already")
        if tie.axis is None:
            continue
        other = by_length.setdefault(tie.length, tie)
        if other.growth != tie.growth:
            raise _error(
                tie.name,
                f"it has {tie.length} rows as state {other.name!r} has, and a run adds "
                f"{tie.growth} to the one and {other.growth} to the other",
            )
        if other.window != tie.window:
            raise _error(
                tie.name,
                f"it has {tie.length} rows as state {other.name!r} has, and keeps {tie.window} "
                f"where that one keeps {other.window}",
            )


class _Binder:
    """Replaces the ties of one function by states."""

    def __init__(self, function: Function, ties: Sequence[_Tie]) -> None:
        self.function = function
        self.ties = ties
        self.states: dict[str, Value] = {}
        first = function.block.first
        assert first is not None
        self.start = first

    def run(self) -> None:
        for tie in self.ties:
            self._take_past(tie)
        self._keep_results()
        end = self.function.block.terminator
        rewriter = Rewriter(self.function).at(end)
        for tie, present in zip(self.ties, self._presents(rewriter), strict=True):
            if present is self.states[tie.name]:
                continue  # it stays what it is
            shown = self.states[tie.name]
            if tie.axis is not None:
                shown = self._state(rewriter, tie, present.type.dims)
            rewriter.create(lookup("assign"), [shown, present])
        self._drop_results()
        for tie in self.ties:
            if tie.axis is not None:
                self._bound(tie)

    def _take_past(self, tie: _Tie) -> None:
        """Replaces the input of a tie by a state with the same dims."""
        rewriter = Rewriter(self.function).at(self.start)
        fresh = self.states[tie.name] = self._state(rewriter, tie, tie.past.type.dims)
        if tie.past.name.isidentifier():
            fresh.name = tie.past.name
        for op, index in list(tie.past.uses):
            rewriter.rewire(op, index, fresh)
        rewriter.erase_input(tie.past)

    def _state(self, rewriter: Rewriter, tie: _Tie, dims: Sequence[Dim]) -> Value:
        attrs: dict[str, Attr] = {
            "variable": tie.name,
            "dtype": tie.past.type.dtype,
            "shape": tuple(dims),
        }
        if tie.axis is not None:
            attrs["layout"] = Layout(strides=_strides(tie, dims))
            attrs |= {"capacity": tie.capacity, "axis": tie.axis, "length": tie.length}
            attrs |= {"window": tie.window} if tie.window else {}
        return rewriter.create(lookup("state"), [], attrs).result

    def _presents(self, rewriter: Rewriter) -> list[Value]:
        """The values to assign to states. They do not depend on earlier assigns, and growing ones
        are concats of two parts.
        """
        found = []
        for tie in self.ties:
            present = self.function.results[tie.number]
            op = present.op
            if tie.axis is not None and op is not None and len(op.operands) > 2:
                present = self._in_two(op)
            elif present is not self.states[tie.name] and self._is_view_of_state(present):
                present = rewriter.create(lookup("copy"), [present]).result
            found.append(present)
        return found

    def _in_two(self, op: Op) -> Value:
        """Rewrites a concat of several parts as one of the first part and all others."""
        rewriter, attrs = Rewriter(self.function).at(op), {"axis": op.attrs["axis"]}
        fresh = rewriter.create(CONCAT, op.operands[1:], attrs, op.origin).result
        whole = rewriter.create(CONCAT, [op.operands[0], fresh], attrs, op.origin).result
        rewriter.replace_op(op, [whole])
        return whole

    def _keep_results(self) -> None:
        """Replaces results that alias a state by copies of its content before the run."""
        end, tied = self.function.block.terminator, {tie.number for tie in self.ties}
        rewriter = Rewriter(self.function).at(end)
        for number, value in enumerate(self.function.results):
            if number not in tied and self._is_view_of_state(value):
                rewriter.rewire(end, number, rewriter.create(lookup("copy"), [value]).result)

    def _is_view_of_state(self, value: Value) -> bool:
        """Whether a value is a state's memory, possibly through views."""
        while value.op is not None and value.op.record.view_of is not None:
            shown = value.op.operands[value.op.record.view_of]
            assert shown is not None
            value = shown
        return value.op is not None and value.op.record.is_state

    def _drop_results(self) -> None:
        tied = {tie.number for tie in self.ties}
        end = self.function.block.terminator
        kept = [v for n, v in enumerate(end.operands) if n not in tied]
        names = self.function.result_names
        self.function.result_names = [n for k, n in enumerate(names) if k not in tied]
        rewriter = Rewriter(self.function)
        rewriter.erase(end)
        rewriter.create(lookup("return"), kept)

    def _bound(self, tie: _Tie) -> None:
        """Adds assumptions that the capacity bounds the state's length after a run, and thus the
        old and the new rows."""
        reason = (
            f"state {_quoted(tie.name)} holds at most {tie.capacity} along dim {tie.axis}; reset "
            "the program"
        )
        known = {(a.left, a.right) for a in self.function.assumptions}
        for dim in (add(tie.length, tie.growth), tie.length, tie.growth):
            bound = Assumption(minimum(dim, tie.capacity), dim, reason)
            if isinstance(dim, DimExpr) and (bound.left, bound.right) not in known:
                self.function.assumptions[bound] = None


def _quoted(name: str) -> str:
    return f'"{name}"'


def _strides(tie: _Tie, dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Strides of a dense tensor of `dims` whose extent along the growing axis is the state's
    capacity.
    """
    strides: list[Dim] = [1]
    for axis in range(len(dims) - 1, 0, -1):
        extent = tie.capacity if axis == tie.axis else dims[axis]
        strides.append(multiply(strides[-1], extent))
    return tuple(reversed(strides))


BIND_STATE = Pass("bind-state", run, __doc__)
