"""Imports Loop and Scan: as an op with the body as its block, or unrolled (unrolled.py) if carried
values change their shape and the number of iterations is known.

A Scan is a loop that takes a row of each of its inputs. How a value becomes a row, and rows an
output, is in `ops_scan.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from aot.errors import CompileError
from aot.frontends.lib.extents import (
    bound,
    check_most,
    dim_value,
    is_made_inside,
    largest,
    narrowed,
    widened,
)
from aot.frontends.onnx.blocks import (
    GraphImporter,
    as_type,
    discard,
    finish,
    insert_op,
    try_block,
)
from aot.frontends.onnx.loop_forms import HOW_TO_KEEP_SIZE, LoopForm, truth
from aot.frontends.onnx.scopes import Held, Scope, StackedList
from aot.frontends.onnx.stacks import (
    StackType,
    joined,
    level,
    row_of,
    stack_of,
)
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.frontends.onnx.unrolled import NotUnrollableError, Unrolled
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.equalities import DimEqualities
from aot.ir.graph import Block, ConstantData, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import DType
from aot.ops import lookup
from aot.ops.control import INDEX_TYPE

ENDLESS = 1 << 31
MOST_TRIES = 4  # to find out how what a loop carries grows
# By the number of a carried value and an axis: its most extent, and what a run adds at most.
Growth = dict[tuple[int, int], tuple[Dim, Dim]]


def loop_results(form: LoopForm) -> Sequence[Held]:
    """The results of a loop: final carried values, then rows stacked along a new first dim. Unused
    outputs get arbitrary values.

    Raises:
        UnsupportedNodeError, CompileError: neither way is open, or the body does not name what it
            carries.
    """
    if not all(form.carried_names):
        raise form.node.error("an input of its body, which is carried, has no name")
    if all(isinstance(v, Value) for v in form.initial):
        return _AsOp(form).results()
    before = dict(form.node.rewriter.function.assumptions)
    if not any(isinstance(v, StackedList) for v in form.initial):
        try:
            return Unrolled(form).results()
        except NotUnrollableError:
            form.node.rewriter.function.assumptions = before
    return _with_stacks(form)


def _with_stacks(form: LoopForm) -> Sequence[Held]:
    """The results of a loop that carries sequences as stacks of their tensors."""
    types = form.stack_types()
    for _ in range(MOST_TRIES):
        tried = form.with_stacks(types)
        found = _AsOp(tried)
        if not tried.wider:
            found_results = found.results()
            if not tried.wider:
                return tried.packed(found_results)
        found.give_up()
        types.update(tried.wider)
    raise UnsupportedNodeError("the tensors of a sequence that it carries grow from run to run")


class _AsOp:
    """A loop imported as an op with a block."""

    def __init__(self, form: LoopForm) -> None:
        self.form = form
        self.node = form.node
        self.before = dict(self.node.rewriter.function.assumptions)
        self.growth: Growth = {}
        self.row_types: dict[int, StackType] = {}  # of rows whose extents data decide
        self._try()

    def _try(self) -> None:
        """Imports the body; values that grow have their largest extents, with the actual extents as
        further carried values."""
        form, function = self.form, self.node.rewriter.function
        types = [v.type for v in form.tensors]
        for (n, axis), (most, _) in self.growth.items():
            extents = list(types[n].dims)
            extents[axis] = most
            types[n] = types[n].with_dims(tuple(extents))
        counts = [INDEX_TYPE] * len(self.growth)
        names = ["", *form.carried_names, *[""] * len(counts)]
        self.block = Block([INDEX_TYPE, *types, *counts], names)
        number, *arguments = self.block.args
        carried = arguments[: len(types)]
        inside = replace(self.node, rewriter=Rewriter(function, self.block))
        for place, argument in enumerate(carried):
            axes = [
                (axis, count)
                for (n, axis), count in zip(self.growth, arguments[len(types) :], strict=True)
                if n == place
            ]
            if axes:
                carried[place] = narrowed(inside, argument, axes, "what it carries")
        self.entering = [v.type for v in carried]
        limits = {a: None for a in function.assumptions if a not in self.before}
        given = {**form.arguments(inside.rewriter, number), **form.named(carried)}
        self.tried = try_block(
            form.importer,
            self.node,
            form.body,
            form.outer,
            self.block,
            given,
            lambda values: form.flattened(values, inside, self.block),
        )
        self.tried.assumed.update(limits)

    def give_up(self) -> None:
        """Reverts the changes of the last attempt."""
        self.node.rewriter.function.assumptions = self.before
        discard(self.form.importer, self.node, self.tried)

    def results(self) -> list[Held]:
        tried = self.tried
        problem: Exception | None = tried.error
        if problem is None and not tried.is_whole:
            problem = UnsupportedNodeError("")
        for _ in range(MOST_TRIES):
            if problem is not None or not self._grows():
                break
            self.node.rewriter.function.assumptions = dict(self.before)
            discard(self.form.importer, self.node, self.tried)
            self._try()
            tried = self.tried
            if self.form.wider:
                return []
            if tried.error is not None or not tried.is_whole:
                problem = tried.error or UnsupportedNodeError("")
        if problem is None:
            problem = self._problem_with_carried() or self._problem_with_rows()
        if problem is None:
            return self._made()
        self.give_up()
        if self.form.stacks:
            raise problem if str(problem) else self._lacks()
        try:
            return Unrolled(self.form).results()
        except NotUnrollableError as why:
            if self.form.trips is None and self.form.trip_count is None and not self.form.may_open:
                self.node.rewriter.function.assumptions = dict(self.before)
                return _AsOp(replace(self.form, may_open=True)).results()
            if isinstance(problem, CompileError):
                raise problem from None
            lacks = self._lacks()
            if not str(problem):
                raise lacks from None
            raise UnsupportedNodeError(f"{problem}, and {why}; {HOW_TO_KEEP_SIZE}") from None

    def _lacks(self) -> UnsupportedNodeError:
        """The error for a body with unsupported nodes, which it reports to the importer of the
        outer graph.
        """
        first = next(name for name in self.node.outputs if name)
        self.form.outer.unsupported.extend((first, lack) for lack in self.tried.lacks)
        return UnsupportedNodeError("")

    @property
    def _carried(self) -> list[Value]:
        first = int(self.form.has_condition)
        return self.tried.present[first : first + len(self.form.initial)]

    @property
    def _rows(self) -> list[tuple[int, Value]]:
        """(number, value) of the rows that are used."""
        count = len(self.form.initial)
        rows = self.tried.present[self.form.has_condition + count :]
        return [(count + n, v) for n, v in enumerate(rows) if count + n in self.form.wanted]

    def _goes_on(self) -> bool | None:
        """The condition that the body yields, if known at compile time; None if it depends on
        data."""
        if not self.form.has_condition:
            return True
        return truth(self.form.importer, self.tried.present[0])

    def _trips(self) -> Dim | None:
        """An upper bound of the iterations; None if shapes do not determine it."""
        trips = self.form.trips
        if self._goes_on() is False:
            return 1 if trips is None else dims.minimum(trips, 1)
        return trips

    def _grows(self) -> bool:
        """Determines the axes along which carried values grow, and their largest extents after all
        iterations, each of which adds as much; returns whether that differs from what was known."""
        form = self.form
        if self._can_be_unrolled():
            return False
        self.node.rewriter.function.assumptions.update(self.tried.assumed)
        found: Growth = dict(self.growth)
        for number, value in enumerate(self._carried):
            first, entering = form.tensors[number].type, self.entering[number]
            if value.type.rank != first.rank or value.type.dtype is not first.dtype:
                return False
            for axis, after in enumerate(value.type.dims):
                before = entering.dims[axis]
                if after == before or self._are_equal(after, before):
                    continue
                trips = form.bounded_trips()
                if trips is None:
                    return False
                longest = largest(self.node, after, but=before)
                more = dims.add(after if longest is None else longest, dims.multiply(before, -1))
                least = largest(self.node, more) if self._is_free_of(more, before) else None
                if least is None:  # that its runs are bounded does not bound it
                    self.growth = {}
                    return False
                each = dims.maximum(least, 0)
                most = dims.add(first.dims[axis], dims.multiply(trips, each))
                if found.get((number, axis), (0, -1))[1] != each:
                    found[number, axis] = (most, each)
        is_new, self.growth = found != self.growth, dict(sorted(found.items()))
        return is_new

    def _are_equal(self, a: Dim, b: Dim) -> bool:
        assumed = {**self.node.rewriter.function.assumptions, **self.tried.assumed}
        return DimEqualities(assumed).are_equal(a, b)

    @staticmethod
    def _is_free_of(dim: Dim, other: Dim) -> bool:
        """Whether a dim has no symbol in common with another one."""
        return isinstance(other, int) or dims.symbols(dim).isdisjoint(dims.symbols(other))

    def _can_be_unrolled(self) -> bool:
        """Whether the loop may be unrolled, so that each iteration has shapes of its own."""
        form = self.form
        is_known = form.condition is None and form.trip_count is None
        has_number = form.trips is None or isinstance(form.trips, int)
        return is_known and has_number and self._goes_on() is not None

    def _problem_with_rows(self) -> UnsupportedNodeError | None:
        inside = replace(self.node, rewriter=Rewriter(self.node.rewriter.function, self.block))
        for number, row in self._rows:
            if is_made_inside(self.block, row.type.dims):
                types = [StackType(row.type.dtype, row.type.dims)]
                self.row_types[number] = joined(inside, types, [self.block])
        if not self._rows or self.form.bounded_trips() is not None or self._trips() is not None:
            return None
        name = self.form.body.output[self.form.has_condition + self._rows[0][0]].name
        return UnsupportedNodeError(f"its output {self._rows[0][0]} has a row ({name!r}) a run")

    def _is_counted(self) -> bool:
        """Whether the number of iterations, and thus of rows, is known only after the loop."""
        is_exact = self.form.condition is None and self._goes_on() is not None
        return self.form.is_open or (bool(self._rows) and not is_exact)

    def _problem_with_carried(self) -> UnsupportedNodeError | None:
        """Converts carried values to their initial types; returns the problem if that is
        impossible."""
        self.carried: list[Value] = []
        self.counts: list[Value] = []
        function = self.node.rewriter.function
        function.assumptions.update(self.tried.assumed)
        inside = replace(self.node, rewriter=Rewriter(function, self.block))
        for number, value in enumerate(self._carried):
            argument = self.block.args[1 + number]
            axes = [axis for n, axis in self.growth if n == number]
            wide = value
            for axis in axes:
                extent, most = value.type.dims[axis], argument.type.dims[axis]
                bound(inside, extent, most, "what it carries")
                self.counts.append(dim_value(inside, extent))
            if axes and value.type.rank == argument.type.rank:
                shape = [
                    most if axis in axes else value.type.dims[axis]
                    for axis, most in enumerate(argument.type.dims)
                ]
                wide = widened(inside, value, shape)
            same = as_type(self.node, wide, argument.type, self.block)
            if same is None:
                name = self.form.carried_names[number]
                return UnsupportedNodeError(
                    f"carried value {name!r} is {self.entering[number]} before an iteration and "
                    f"{value.type} after it"
                )
            self.carried.append(same)
        return None

    def _made(self) -> list[Held]:
        node, form = self.node, self.form
        goes_on, trips = self._goes_on(), self._trips()
        if trips == 0 and all(v.type.is_static for _, v in self._rows):
            return self._never_run()
        inside = Rewriter(node.rewriter.function, self.block)
        if goes_on is None:
            condition = inside.create(
                lookup("reshape"), [self.tried.present[0]], {"shape": ()}, node.label
            ).result
        else:
            data = ConstantData(np.array(True))
            condition = insert_constant(inside, data, node.label)
        rows = self._rows
        more = [dim_value(node, form.tensors[n].type.dims[axis]) for n, axis in self.growth]
        initial, following = list(form.tensors), list(self.counts)
        for number, axis in self.growth:
            shape = list(initial[number].type.dims)
            shape[axis] = self.block.args[1 + number].type.dims[axis]
            initial[number] = widened(node, initial[number], shape)
        if self._is_counted():  # one more value is carried: how many runs there were
            more.append(node.scalar(0, DType.I64))
            self.block.args.append(Value(INDEX_TYPE, self.block, len(self.block.args)))
            end = replace(node, rewriter=inside)
            runs = end.emit("add", self.block.args[0], end.scalar(1, DType.I64))
            if form.is_open:  # and whether there would be one more
                runs = end.emit("add", runs, end.cast(condition, DType.I64))
            following.append(runs)
        end = replace(node, rewriter=inside)
        stacks = [
            [row] if (type := self.row_types.get(n)) is None else row_of(end, row, type)
            for n, row in rows
        ]
        flat = [v for parts in stacks for v in parts]
        finish(node, self.tried, [condition, *self.carried, *following, *flat])
        trip_count = form.trip_count if trips is None else None
        operands = [trip_count, form.condition, *initial, *more]
        attrs = {"trips": -1 if trips is None else trips}
        made = insert_op(node, "loop", operands, [self.block], attrs).results
        count = len(form.initial)
        found = made[count + len(more) :]
        if self._is_counted():
            total = made[count + len(more) - 1]
            if form.is_open and form.trips is not None:
                check_most(node, total, form.trips, "its runs")
            found = [narrowed(node, value, [(0, total)], "its runs") for value in found]
        results = list(made[:count])
        for number in dict.fromkeys(n for n, _ in self.growth):
            axes = [
                (axis, made[count + place])
                for place, (n, axis) in enumerate(self.growth)
                if n == number
            ]
            results[number] = narrowed(node, results[number], axes, "what it carries")
        given: dict[int, Held] = {}
        values = iter(found)
        for (number, _), parts in zip(rows, stacks, strict=True):
            mine = [next(values) for _ in parts]
            type = self.row_types.get(number)
            given[number] = mine[0] if type is None else self._of_rows(mine, type)
        filler = made[0] if made else condition
        return [*results, *(given.get(count + n, filler) for n in range(form.row_count))]

    def _of_rows(self, parts: Sequence[Value], type: StackType) -> Held:
        """Stacked rows with data-dependent extents, as one tensor or as a sequence."""
        found = stack_of(parts, type)
        return found if self.form.keeps_rows else level(self.node, found, type.ragged).values

    def _never_run(self) -> list[Held]:
        node, form = self.node, self.form
        types = {n: v.type for n, v in self._rows}
        discard(form.importer, node, self.tried)
        count = len(form.initial)
        empty = [
            node.constant(np.zeros((0, *types[n].shape), types[n].dtype.numpy))
            if n in types
            else node.scalar(0, DType.I64)
            for n in range(count, count + form.row_count)
        ]
        return [*form.tensors, *empty]


def declared_rank(info: onnx.ValueInfoProto) -> int | None:
    """The rank that a body declares for an input; None if it declares none."""
    tensor = info.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def import_loop(importer: GraphImporter, node: Node, outer: Scope) -> Sequence[Held | None]:
    """The results of an ONNX Loop.

    Raises:
        UnsupportedNodeError: what it needs is not there, or has no fixed shape.
        CompileError: the model is wrong.
    """
    body = node.attribute("body").g
    initial = [node.lists.get(n) or node.input(n) for n in range(2, len(node.inputs))]
    names = [i.name for i in body.input]
    if len(names) != 2 + len(initial):
        raise node.error(
            f"its body has {len(names)} inputs, expected {2 + len(initial)}: the run, the "
            "condition, and what is carried"
        )
    rows = len(body.output) - 1 - len(initial)
    if rows < 0 or len(node.outputs) > len(initial) + rows:
        raise node.error(
            f"its body gives {len(body.output)} outputs, expected the condition and "
            f"{max(len(initial), len(node.outputs))} more"
        )

    def arguments(rewriter: Rewriter, number: Value) -> dict[str, Value]:
        condition = insert_constant(rewriter, ConstantData(np.array(True)), node.label)
        found = {}
        for info, value in zip(body.input[:2], (number, condition), strict=True):
            shape = (1,) if declared_rank(info) == 1 else ()
            found[info.name] = _reshaped(rewriter, value, shape, node.label)
        return found

    trips, trip_count = _trips(node)
    condition = node.optional(1)
    known = None if condition is None else truth(importer, condition)
    if known is False:
        trips, trip_count = 0, None
    form = LoopForm(
        importer,
        node,
        outer,
        body,
        initial,
        names[2:],
        arguments,
        trips,
        trip_count,
        None if condition is None or known is not None else node.reshape(condition, ()),
        wanted={n for n in range(len(node.outputs)) if node.wants(n)},
    )
    return loop_results(form)


def _reshaped(rewriter: Rewriter, value: Value, shape: tuple[int, ...], origin: str) -> Value:
    if value.type.dims == shape:
        return value
    return rewriter.create(lookup("reshape"), [value], {"shape": shape}, origin).result


def _trips(node: Node) -> tuple[Dim | None, Value | None]:
    """(upper bound as a dim, count as a value) of a Loop's iterations, each if known."""
    operand = node.optional(0)
    if operand is None:
        return None, None
    found = node.values.of(operand)
    if found is None:
        return None, node.reshape(operand, ())
    if found.size != 1:
        raise node.error(f"operand 0 (trip count) has {found.size} elements, expected 1")
    trips = dims.maximum(dims.add(found.reshape(-1)[0], 0), 0)
    # exporters write the largest integer where only the condition ends a loop
    return (None if isinstance(trips, int) and trips >= ENDLESS else trips), None
