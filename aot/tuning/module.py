"""Builds modules that compare choices: of a single executable, and of all executables within the
model.

The first kind runs an executable as each of some choices, on the extents and weights of the model's
dispatches; what others would have made is memory that is there from the start. The second one runs
the whole model several times over, with other choices each time: caches hold there what they hold
in the model. Every choice has its turn in every run; the first one has a second turn at the end,
which says how much times differ that should not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aot.analysis.cost.candidates import Choice, Run, schedule_with
from aot.analysis.dispatches import dispatched
from aot.analysis.memory.storage import ARENA, CONSTANTS, OUTPUTS
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.builtin import CONSTANT, RETURN
from aot.ir.clone import clone_function, clone_op
from aot.ir.dims import Dim
from aot.ir.graph import Attr, Block, ConstantData, Function, FunctionRef, Module, Op, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import Layout, TensorType
from aot.ops.control import STATE
from aot.ops.structure import DISPATCH
from aot.target.model import Target


@dataclass(frozen=True)
class Sized:
    """A run of an executable with numbers for all its dims.

    Attributes:
        weight: how much its time counts.
    """

    op: Op
    values: Mapping[str, int]
    weight: int

    @staticmethod
    def of(run: Run, symbols: Mapping[str, int]) -> Sized | None:
        """The run with numbers for the model's symbols; None if some extent stays unknown."""
        try:
            values = {name: dims.evaluate(dim, symbols) for name, dim in run.values.items()}
        except (KeyError, ZeroDivisionError):
            return None
        return Sized(run.op, values, run.count)

    def bytes(self, function: Function) -> int:
        """The size in bytes of all operands and results."""
        values = (*function.inputs, *function.results)
        sizes = [dims.evaluate(v.type.bytes, self.values) for v in values]
        return sum(sizes)


def comparing_module(
    function: Function, runs: Sequence[Sized], choices: Sequence[Choice], target: Target
) -> Module:
    """A module whose entry point dispatches `function` once per choice, then with the first choice
    again; each time for all of `runs`."""
    entry = Function("main", Block())
    module = Module([entry])
    rewriter = Rewriter(entry)
    operands = [_operands(rewriter, function, run, n) for n, run in enumerate(runs)]
    names = []
    for number, choice in enumerate(choices):
        made = clone_function(function)
        made.name = f"{number}: {choice}"
        made.bindings = tuple(b if b == CONSTANTS else ARENA for b in function.bindings)
        made.schedule = schedule_with(made, choice, target)
        module.add(made)
        names.append(made.name)
    for name in (*names, names[0]):
        for run, given in zip(runs, operands, strict=True):
            attrs: dict[str, Attr] = {
                "executable": FunctionRef(name),
                "dims": tuple(run.values[n] for n in function.dim_names),
                "ties": (),
            }
            types = [_sized(v.type, run.values) for v in function.results]
            rewriter.insert(Op(DISPATCH, given, attrs, types))
    rewriter.insert(Op(RETURN, [], {}, []))
    return module


@dataclass(frozen=True)
class Copies:
    """A module that runs a model several times in a row.

    Attributes:
        dispatches: the executable of each dispatch of one copy, in order.
    """

    module: Module
    dispatches: tuple[str, ...]


def copies_of(
    module: Module, copies: Sequence[Mapping[str, Choice]], target: Target
) -> Copies | None:
    """A module whose entry point runs the model once for each of `copies`, then once more as in the
    first.

    A copy says which executables have another choice than they have. None where a copy would not be
    like the model: it has branches, loops or states, or several entry points.
    """
    if len(module.entry_points) != 1:
        return None
    (model,) = module.entry_points
    if any(op.blocks or op.record is STATE for op in model.block):
        return None
    body = Block([a.type for a in model.block.args], [a.name for a in model.block.args])
    entry = Function(model.name, body)
    entry.assumptions = dict(model.assumptions)
    made = Module([entry])
    rewriter = Rewriter(entry, body)
    inputs: dict[Value, Value] = dict(zip(model.block.args, body.args, strict=True))
    for op in model.block:
        if op.record is CONSTANT:
            clone_op(op, inputs, rewriter)
    for choices in (*copies, copies[0]):
        values = dict(inputs)
        for op in model.block:
            if op.record is CONSTANT or op.record.is_terminator:
                continue
            copy = clone_op(op, values, rewriter)
            callee = copy.attrs.get("executable")
            if isinstance(callee, FunctionRef):
                choice = choices.get(callee.name)
                name = _copied(made, module.functions[callee.name], choice, target)
                copy.attrs["executable"] = FunctionRef(name)
                copy.attrs["dims"] = _in_arena(copy, module.functions[callee.name])
    rewriter.insert(Op(RETURN, [], {}, []))
    return Copies(made, dispatched(module))


def _in_arena(dispatch: Op, function: Function) -> tuple[Attr, ...]:
    """The dim parameters of a dispatch, changed for results that are all in the arena."""
    given = dispatch.attrs.get("dims", ())
    assert isinstance(given, tuple)
    told = zip(function.dim_names, given, strict=True)
    classes = {b for b in function.bindings if isinstance(b, str)}
    return tuple(ARENA if name in classes and dim == OUTPUTS else dim for name, dim in told)


def _copied(into: Module, function: Function, choice: Choice | None, target: Target) -> str:
    """Adds an executable with a choice to the module of copies; returns its name."""
    name = function.name if choice is None else f"{function.name}: {choice}"
    if name not in into.functions:
        made = clone_function(function)
        made.name = name
        # no copy's results are outputs: all run alike
        made.bindings = tuple(ARENA if b == OUTPUTS else b for b in function.bindings)
        if choice is not None:
            made.schedule = schedule_with(made, choice, target)
        into.add(made)
    return name


def _operands(rewriter: Rewriter, function: Function, run: Sized, number: int) -> list[Value]:
    """The operands of a dispatch: the model's constants, and zeros for values that are computed at
    run time."""
    made: list[Value] = []
    for place, value in enumerate(v for v in run.op.operands if v is not None):
        parameter = function.inputs[place]
        type = _sized(parameter.type, run.values)
        if function.bindings[place] == CONSTANTS:
            made.append(insert_constant(rewriter, _data(value, type)))
            continue
        attrs: dict[str, Attr] = {
            "variable": f"{number}.{place}",
            "dtype": type.dtype,
            "shape": type.dims,
            "layout": type.layout or Layout(),
        }
        whole = {**_DEFAULTS, **attrs}
        made.append(rewriter.insert(Op(STATE, [], whole, [type])).result)
    return made


_DEFAULTS: dict[str, Attr] = {a.name: a.default for a in STATE.attributes if not a.is_required}


def _data(value: Value, type: TensorType) -> ConstantData:
    """The data of a constant; for a view of one, other data of the same size."""
    if value.op is not None and value.op.record is CONSTANT:
        data = value.op.attrs["value"]
        assert isinstance(data, ConstantData)
        return data
    shape = [n for n in type.physical_dims if isinstance(n, int)]
    count = int(np.prod(shape, dtype=np.int64))
    return ConstantData((np.arange(count) % 2).astype(type.dtype.numpy).reshape(shape), type)


def _sized(type: TensorType, values: Mapping[str, int]) -> TensorType:
    def known(dim: Dim) -> Dim:
        return dims.substitute(dim, values)

    layout = type.layout and type.layout.map_dims(known)
    return TensorType(type.dtype, tuple(map(known, type.dims)), layout)
