"""Loop and Scan: an op with the body as its block; or the body's runs one after another in line,
where what is carried changes its shape from run to run and the number of runs is known.

A Scan is a loop that takes a row of each of its inputs. How a value becomes a row, and rows an
output, is in `ops_scan.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from aot.errors import CompileError
from aot.frontends.lib.extents import (
    bound,
    dim_value,
    extent_of,
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
from aot.frontends.onnx.scopes import Held, Scope, TensorList
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.equalities import DimEqualities
from aot.ir.graph import Block, ConstantData, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import DType
from aot.ops import lookup
from aot.ops.control import INDEX_TYPE

MAX_UNROLLED_OPS = 10_000
ENDLESS = 1 << 31
HOW_TO_KEEP_SIZE = (
    "carry a buffer of a fixed capacity and write into it (ScatterND, ScatterElements, Where), or "
    "keep it between calls (--state)"
)

MOST_TRIES = 4  # to find out how what a loop carries grows
# By the number of a carried value and an axis: its most extent, and what a run adds at most.
Growth = dict[tuple[int, int], tuple[Dim, Dim]]

Arguments = Callable[[Rewriter, Value], Mapping[str, Value]]
"""What names of the body are in a run, made at a rewriter, by the run's number i64[]."""


@dataclass
class LoopForm:
    """A loop as both ways of importing see it.

    Attributes:
        body: its outputs are the condition, if `has_condition`, then what is carried, then rows.
        initial: what is carried into the first run.
        carried_names: the body's inputs for them.
        arguments: the other inputs.
        trips: how often it runs, as far as shapes say it; None where they do not.
        trip_count: the same as a value, where only data say it.
        condition: what must be true before the first run; None if it is.
        wanted: numbers of outputs that are read.
    """

    importer: GraphImporter
    node: Node
    outer: Scope
    body: onnx.GraphProto
    initial: list[Held]
    carried_names: Sequence[str]
    arguments: Arguments
    trips: Dim | None
    trip_count: Value | None = None
    condition: Value | None = None
    has_condition: bool = True
    wanted: set[int] = field(default_factory=set)

    @property
    def row_count(self) -> int:
        return len(self.body.output) - self.has_condition - len(self.initial)

    def results(self) -> Sequence[Held]:
        """What was carried at last, then rows stacked along a dim in front; for outputs that
        nothing reads, any value.

        Raises:
            UnsupportedNodeError, CompileError: neither way is open.
        """
        if any(isinstance(v, TensorList) for v in self.initial):
            try:
                return _Unrolled(self).results()
            except _NotUnrollableError as why:
                raise UnsupportedNodeError(
                    f"it carries a sequence of tensors, and {why}; what a loop gives may be "
                    "stacked as rows (scan outputs)"
                ) from None
        return _AsOp(self).results()

    @property
    def tensors(self) -> list[Value]:
        """What is carried into the first run, if no sequences are."""
        return [v for v in self.initial if isinstance(v, Value)]

    def bounded_trips(self) -> Dim | None:
        """How often it runs at most, as a dim, which data may give; None where nothing says it."""
        if self.trips is None and self.trip_count is not None:
            node, wide = self.node, self.node.cast(self.trip_count, DType.I64)
            runs = node.emit("maximum", wide, node.scalar(0, DType.I64))
            self.trips, self.trip_count = extent_of(node, runs, None, "its runs"), None
        return self.trips

    def named(self, carried: Sequence[Held]) -> dict[str, Held]:
        return dict(zip(self.carried_names, carried, strict=True))


class _AsOp:
    """A loop as an op with a block."""

    def __init__(self, form: LoopForm) -> None:
        self.form = form
        self.node = form.node
        self.before = dict(self.node.rewriter.function.assumptions)
        self.growth: Growth = {}
        self._try()

    def _try(self) -> None:
        """Imports the body; what grows is as large as it can be, with its extents beside."""
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
        self.tried = try_block(form.importer, self.node, form.body, form.outer, self.block, given)
        self.tried.assumed.update(limits)

    def results(self) -> list[Value]:
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
            if tried.error is not None or not tried.is_whole:
                problem = tried.error or UnsupportedNodeError("")
        if problem is None:
            problem = self._problem_with_carried() or self._problem_with_rows()
        if problem is None:
            return self._made()
        self.node.rewriter.function.assumptions = self.before
        discard(self.form.importer, self.node, tried)
        try:
            return [v for v in _Unrolled(self.form).results() if isinstance(v, Value)]
        except _NotUnrollableError as why:
            if isinstance(problem, CompileError):
                raise problem from None
            first = next(name for name in (o for o in self.node.outputs) if name)
            self.form.outer.unsupported.extend((first, lack) for lack in tried.lacks)
            if not str(problem):
                raise UnsupportedNodeError("") from None
            raise UnsupportedNodeError(f"{problem}, and {why}; {HOW_TO_KEEP_SIZE}") from None

    @property
    def _carried(self) -> list[Value]:
        first = int(self.form.has_condition)
        return self.tried.present[first : first + len(self.form.initial)]

    @property
    def _rows(self) -> list[tuple[int, Value]]:
        """Numbers and values of the rows that are read."""
        count = len(self.form.initial)
        rows = self.tried.present[self.form.has_condition + count :]
        return [(count + n, v) for n, v in enumerate(rows) if count + n in self.form.wanted]

    def _goes_on(self) -> bool | None:
        """The condition that the body gives; None where data decide."""
        if not self.form.has_condition:
            return True
        return _truth(self.form.importer, self.tried.present[0])

    def _trips(self) -> Dim | None:
        """How often it runs at most; None where shapes don't say."""
        trips = self.form.trips
        if self._goes_on() is False:
            return 1 if trips is None else dims.minimum(trips, 1)
        return trips

    def _grows(self) -> bool:
        """Finds out along which axes carried values change, and how large they are at most after
        all runs, each of which adds as much; whether that is other than was known."""
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
                more = dims.add(after, dims.multiply(before, -1))
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
        """Whether a dim has none of the symbols of another one."""
        return isinstance(other, int) or dims.symbols(dim).isdisjoint(dims.symbols(other))

    def _can_be_unrolled(self) -> bool:
        """Whether its runs may be compiled one by one, each with its own shapes."""
        form = self.form
        is_known = form.condition is None and form.trip_count is None
        has_number = form.trips is None or isinstance(form.trips, int)
        return is_known and has_number and self._goes_on() is not None

    def _problem_with_rows(self) -> UnsupportedNodeError | None:
        for number, row in self._rows:
            if is_made_inside(self.block, row.type.dims):
                return UnsupportedNodeError(
                    f"rows of its output {number} are {row.type}, which data decide"
                )
        if not self._rows or self.form.bounded_trips() is not None or self._trips() is not None:
            return None
        name = self.form.body.output[self.form.has_condition + self._rows[0][0]].name
        return UnsupportedNodeError(f"its output {self._rows[0][0]} has a row ({name!r}) a run")

    def _is_counted(self) -> bool:
        """Whether only the runs say how many of them there are, and with that how many rows."""
        is_exact = self.form.condition is None and self._goes_on() is not None
        return bool(self._rows) and not is_exact

    def _problem_with_carried(self) -> UnsupportedNodeError | None:
        """Brings what is carried to the types that it came with."""
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
                    f"what it carries as {name!r} is {self.entering[number]} before a run and "
                    f"{value.type} after it"
                )
            self.carried.append(same)
        return None

    def _made(self) -> list[Value]:
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
            following.append(end.emit("add", self.block.args[0], end.scalar(1, DType.I64)))
        finish(node, self.tried, [condition, *self.carried, *following, *(v for _, v in rows)])
        trip_count = form.trip_count if trips is None else None
        operands = [trip_count, form.condition, *initial, *more]
        attrs = {"trips": -1 if trips is None else trips}
        made = insert_op(node, "loop", operands, [self.block], attrs).results
        count = len(form.initial)
        found = made[count + len(more) :]
        if self._is_counted():
            runs = [(0, made[count + len(more) - 1])]
            found = [narrowed(node, value, runs, "its runs") for value in found]
        results = list(made[:count])
        for number in dict.fromkeys(n for n, _ in self.growth):
            axes = [
                (axis, made[count + place])
                for place, (n, axis) in enumerate(self.growth)
                if n == number
            ]
            results[number] = narrowed(node, results[number], axes, "what it carries")
        stacked = dict(zip((n for n, _ in rows), found, strict=True))
        filler = made[0] if made else condition
        return [*results, *(stacked.get(count + n, filler) for n in range(form.row_count))]

    def _never_run(self) -> list[Value]:
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


class _NotUnrollableError(Exception):
    """Why the runs of a loop can't stand one after another."""


class _Unrolled:
    """The runs of a loop one after another, each imported for itself."""

    def __init__(self, form: LoopForm) -> None:
        self.form = form
        self.node = form.node
        self.carried: list[Held] = list(form.initial)
        self.rows: list[list[Value]] = [[] for _ in range(form.row_count)]

    def results(self) -> list[Held]:
        form, trips = self.form, self.form.trips
        if form.condition is not None or form.trip_count is not None:
            raise _NotUnrollableError("how often it runs is known only when the model runs")
        if trips is not None and not isinstance(trips, int):
            raise _NotUnrollableError(
                f"it runs {trips} times, which must be a number for its runs to be compiled one by "
                "one (--input-shape)"
            )
        number = 0
        goes_on: bool | None = True
        while goes_on and (trips is None or number < trips):
            goes_on = self._run(number)
            if goes_on is None:
                raise _NotUnrollableError("whether it goes on is known only when the model runs")
            number += 1
        return [*self.carried, *(self._stacked(n) for n in range(form.row_count))]

    def _run(self, number: int) -> bool | None:
        """Imports run `number`; whether another follows."""
        form, node = self.form, self.node
        if len(node.rewriter.block) > MAX_UNROLLED_OPS:
            raise UnsupportedNodeError(
                f"what it carries changes its shape from run to run, and {number} of its runs one "
                f"by one make more than {MAX_UNROLLED_OPS} ops; {HOW_TO_KEEP_SIZE}"
            )
        index = insert_constant(node.rewriter, ConstantData(np.array(number, np.int64)), node.label)
        given = {**form.arguments(node.rewriter, index), **form.named(self.carried)}
        made = form.importer.subgraph(form.body, given, form.outer, node.rewriter)
        values = [v for v in made.values if v is not None]
        if made.lacks or len(values) < len(made.values):
            first = next(name for name in node.outputs if name)
            form.outer.unsupported.extend((first, why) for why in made.lacks)
            raise UnsupportedNodeError("")
        carried = values[form.has_condition :]
        self.carried = carried[: len(form.initial)]
        for rows, value in zip(self.rows, carried[len(form.initial) :], strict=True):
            rows.append(self._tensor(value))
        return _truth(form.importer, self._tensor(values[0])) if form.has_condition else True

    def _tensor(self, value: Held) -> Value:
        if isinstance(value, TensorList):
            raise UnsupportedNodeError("its row or its condition is a sequence of tensors")
        return value

    def _stacked(self, number: int) -> Value:
        """Rows along a dim in front."""
        node, rows = self.node, self.rows[number]
        if not rows:
            raise UnsupportedNodeError(
                f"it never runs, so that its output {len(self.form.initial) + number} has no shape"
            )
        types = {row.type for row in rows}
        if len(types) > 1:
            first, second = list(dict.fromkeys(row.type for row in rows))[:2]
            name = self.form.body.output[
                self.form.has_condition + len(self.form.initial) + number
            ].name
            raise node.error(f"rows of {name!r} are {first} and {second}, expected one shape")
        wide = [node.reshape(row, (1, *row.type.dims)) for row in rows]
        return wide[0] if len(wide) == 1 else node.emit("concat", *wide, axis=0)


def _truth(importer: GraphImporter, value: Value) -> bool | None:
    """A bool that is known at compile time."""
    found = importer.values.known(value)
    if found is None or found.size != 1 or found.dtype == object:
        return None
    return bool(found.reshape(()).item())


def declared_rank(info: onnx.ValueInfoProto) -> int | None:
    """The rank that a body says an input has."""
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
    truth = None if condition is None else _truth(importer, condition)
    if truth is False:
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
        None if condition is None or truth is not None else node.reshape(condition, ()),
        wanted={n for n in range(len(node.outputs)) if node.wants(n)},
    )
    return form.results()


def _reshaped(rewriter: Rewriter, value: Value, shape: tuple[int, ...], origin: str) -> Value:
    if value.type.dims == shape:
        return value
    return rewriter.create(lookup("reshape"), [value], {"shape": shape}, origin).result


def _trips(node: Node) -> tuple[Dim | None, Value | None]:
    """How often a Loop runs at most: as a dim where it is one, else as a value."""
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
