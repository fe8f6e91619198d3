"""Imports a TFLite file as a module with a function for each signature; finds everything
unsupported first.

Optimises nothing; operators that nothing needs are left out. Variables become inputs and outputs
that are tied, as `Module.states` says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.base.records import dataclass
from aot.errors import CompileError, UnsupportedError
from aot.frontends.tflite.control import CONTROL, NotImportedError, Variable
from aot.frontends.tflite.flatbuffer import DamagedError
from aot.frontends.tflite.model import NONE, Graph, Model, Operator, Signature, Tensor
from aot.frontends.tflite.ops.signal import on_complex
from aot.frontends.tflite.table import CUSTOM, TABLE, Node, UnsupportedNodeError
from aot.ir.dims import Dim, symbol
from aot.ir.graph import Block, ConstantData, Function, Module, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import DType, TensorType
from aot.ops import lookup

Item = Value | Variable | None
SET = ".is_set"  # whether a state that starts with other values than zeros has been assigned yet
NEXT = ".next"
MOST_DEPTH = 64  # graphs in graphs, which a damaged file could nest without end


def import_model(model: Model) -> Module:
    """A module with a function for each signature; see `import_tflite`."""
    module = Module()
    unsupported: list[str] = []
    signatures = model.signatures or [_whole(model)]
    if len(signatures) == 1:
        signatures = [Signature("main", *_rest(signatures[0]))]
    importers = [Importer(model, signature) for signature in signatures]
    for importer in importers:
        function = importer.run()
        unsupported += [line for line in importer.unsupported if line not in unsupported]
        if function.name in module.functions:
            raise CompileError(f"two signatures are called {function.name!r}")
        module.add(function)
        module.states.update(importer.states)
    unsupported += _shared(importers)
    if unsupported:
        raise UnsupportedError(f"not supported in this model ({len(unsupported)}):", unsupported)
    return module


def _shared(importers: Sequence[Importer]) -> list[str]:
    """The errors for variables used by several signatures, which can't be states, as each entry
    point has its own."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for importer in importers:
        for name, variable in importer.variables.items():
            if variable.is_named:
                users = found.setdefault(name, [])
                users.append((importer.signature.name, variable.is_assigned))
    return [
        f"variable {name!r} is one of the signatures {', '.join(user for user, _ in users)}, and "
        f"{' and '.join(user for user, assigns in users if assigns)} assigns it: each entry point "
        "keeps its own states"
        for name, users in found.items()
        if len(users) > 1 and any(assigns for _, assigns in users)
    ]


def _rest(signature: Signature) -> tuple[int, dict[int, str], Sequence[tuple[str, int]]]:
    return signature.graph, dict(signature.inputs), signature.outputs


def _whole(model: Model) -> Signature:
    """The first graph as an entry point, named by its tensors."""
    graph = model.graphs[0]
    outputs = [(graph.tensors[number].name, number) for number in graph.outputs]
    return Signature("main", 0, {n: graph.tensors[n].name for n in graph.inputs}, outputs)


@dataclass
class Scope:
    """The state of importing one graph: its tensors' values so far.

    Attributes:
        items: what tensors are by their numbers, once known.
        failed: tensors that operators should have made that are not supported.
    """

    graph: Graph
    rewriter: Rewriter
    items: dict[int, Item] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)


class Importer:
    """The importer of one signature, which becomes a function."""

    def __init__(self, model: Model, signature: Signature) -> None:
        self.model, self.signature = model, signature
        self.function = Function(signature.name, Block())
        self.rewriter = Rewriter(self.function)
        self.values = DimValues(self.function)
        self.unsupported: list[str] = []
        self.states: dict[str, tuple[str, int]] = {}
        self.variables: dict[str, Variable] = {}
        self.depth = 0
        self._names: set[str] = set()
        self._symbols: set[str] = set()

    def run(self) -> Function:
        """Imports the function; unsupported parts are then listed in `unsupported`."""
        graph = self.model.graphs[self.signature.graph]
        scope = Scope(graph, self.rewriter)
        for number in graph.inputs:
            name = self.signature.inputs.get(number, graph.tensors[number].name)
            try:
                type = self._type(graph.tensors[number], name)
                scope.items[number] = self.argument(name, type)
            except UnsupportedNodeError as error:
                self.unsupported.append(f"input {name!r}: {error}")
                scope.failed.add(number)
        self.operators(scope, [number for _, number in self.signature.outputs])
        results: dict[str, Value] = {}
        for name, number in self.signature.outputs:
            value = self._result(scope, number, name)
            if value is not None:
                results[_unique(name, set(results))] = value
        for variable in self.variables.values():
            self._add_state(variable, results)
        self.function.result_names = list(results)
        self.rewriter.create(lookup("return"), list(results.values()))
        return self.function

    def argument(self, name: str, type: TensorType) -> Value:
        """A new input of the function."""
        block = self.function.block
        name = _unique(name, self._names)
        self._names.add(name)
        value = Value(type, block, len(block.args), name)
        block.args.append(value)
        return value

    def _type(self, tensor: Tensor, name: str) -> TensorType:
        """An input's type; dynamic extents become symbols derived from its name."""
        dims: list[Dim] = []
        for number, extent in enumerate(tensor.dims):
            if extent >= 0:
                dims.append(extent)
                continue
            fresh = re.sub(r"[^A-Za-z0-9_]", "_", f"{name}_d{number}")
            fresh = _unique(fresh if fresh[0].isalpha() else f"_{fresh}", self._symbols)
            self._symbols.add(fresh)
            dims.append(symbol(fresh))
        type = TensorType(tensor.dtype, tuple(dims))
        if type.problem:
            raise CompileError(f"input {name!r} is {type}: {type.problem}")
        return type

    def _result(self, scope: Scope, number: int, name: str) -> Value | None:
        try:
            if scope.graph.tensors[number].is_complex and number not in scope.failed:
                raise UnsupportedNodeError("it is of complex numbers; give its REAL and IMAG parts")
            found = self.item(scope, number)
        except UnsupportedNodeError as error:
            self.unsupported.append(f"output {name!r}: {error}")
            return None
        if isinstance(found, Variable):
            self.unsupported.append(f"output {name!r} is a variable, and no tensor")
            return None
        if found is not None or number in scope.failed:
            return found
        raise CompileError(f"output {name!r}: nothing makes {scope.graph.tensors[number].label}")

    def _add_state(self, variable: Variable, results: dict[str, Value]) -> None:
        """Adds a variable's final value as a result that is tied to the variable."""
        if variable.held is None or variable.value is variable.held:
            if variable.held is not None and variable.value is variable.held:
                results[f"{variable.name}{NEXT}"] = variable.held
            return
        assert variable.value is not None
        results[f"{variable.name}{NEXT}"] = variable.value
        if variable.is_set is not None:
            truth = insert_constant(self.rewriter, ConstantData(np.array(True)), variable.name)
            results[f"{variable.is_set.name}{NEXT}"] = truth

    def state(self, variable: Variable, type: TensorType) -> Value:
        """Turns a variable into a state, and returns its value at the function's start."""
        held = self.argument(variable.name, type)
        variable.held = held
        self.states[held.name] = (f"{held.name}{NEXT}", 0)
        variable.name = held.name
        if variable.initial is None or not variable.initial.array.any():
            return held
        variable.is_set = self.argument(f"{held.name}{SET}", TensorType(DType.BOOL, ()))
        self.states[variable.is_set.name] = (f"{variable.is_set.name}{NEXT}", 0)
        first = insert_constant(self.rewriter, variable.initial, held.name)
        operands = [variable.is_set, held, first]
        return self.rewriter.create(lookup("where"), operands, {}, held.name).result

    # operators

    def operators(self, scope: Scope, wanted: Sequence[int]) -> None:
        """Imports the operators of a graph that compute wanted tensors or have side effects."""
        needed = _needed(scope.graph, wanted)
        for operator in scope.graph.operators:
            if operator.number in needed:
                self._operator(scope, operator)

    def _operator(self, scope: Scope, operator: Operator) -> None:
        given = [n for n in operator.inputs if n != NONE]
        if not scope.failed.isdisjoint(given):
            scope.failed.update(operator.outputs)
            return
        node = None
        try:
            node = self._node(scope, operator)
            for number, value in zip(operator.outputs, self._built(scope, node), strict=False):
                scope.items[number] = value
        except NotImportedError:
            scope.failed.update(operator.outputs)
        except UnsupportedNodeError as error:
            where = f"operator {operator.number}, {_label(scope.graph, operator)!r}"
            kind = "custom operator " if operator.is_custom else ""
            self.unsupported.append(f"{kind}{operator.name} ({where}): {error}")
            scope.failed.update(operator.outputs)

    def _node(self, scope: Scope, operator: Operator) -> Node:
        items: list[Value | None] = []
        for number in operator.inputs:
            found = None if number == NONE else self.item(scope, number)
            items.append(found if isinstance(found, Value) else None)
        return Node(
            operator,
            scope.graph,
            items,
            _label(scope.graph, operator),
            scope.rewriter,
            self.values,
        )

    def _built(self, scope: Scope, node: Node) -> Sequence[Item]:
        operator = node.operator
        if operator.name in CONTROL and not operator.is_custom:
            return CONTROL[operator.name](self, scope, node)
        entry = (CUSTOM if operator.is_custom else TABLE).get(operator.name)
        if entry is None:
            raise UnsupportedNodeError("there is no importer for it")
        given = [n for n in operator.inputs if n != NONE]
        if any(scope.graph.tensors[n].is_complex for n in given):
            return on_complex(node)
        made = entry(node)
        for number, value in node.assigned.items():
            self._assign(scope, operator.inputs[number], value)
        results = [made] if isinstance(made, Value) else list(made)
        return [None if v is None else node.stored(v, i) for i, v in enumerate(results)]

    def _assign(self, scope: Scope, number: int, value: Value) -> None:
        """Records a new value for a variable tensor."""
        tensor = scope.graph.tensors[number]
        variable = self.variables.get(tensor.label) if tensor.is_variable else None
        if variable is None or self.depth:
            return  # nobody asks for what a constant or a loop's own state becomes
        variable.value = scope.items[number] = value

    def item(self, scope: Scope, number: int) -> Item:
        """The value or variable of tensor `number`; None if no operator has computed it."""
        if number not in scope.items:
            tensor = scope.graph.tensors[number]
            scope.items[number] = self._stored(scope, tensor)
        return scope.items[number]

    def _stored(self, scope: Scope, tensor: Tensor) -> Item:
        if tensor.is_variable:
            variable = self.variables.setdefault(tensor.label, Variable(tensor.name))
            if variable.value is None:
                variable.value = self.state(variable, TensorType(tensor.dtype, tensor.dims))
            return variable.value
        if not tensor.has_data and 0 not in tensor.dims:
            return None
        data = tensor.data
        if data is None:
            data = np.empty(tensor.dims, tensor.dtype.numpy)
        name = tensor.name.partition(";")[0]
        return insert_constant(scope.rewriter, ConstantData.borrowed(data), name)

    def subgraph(self, index: int, given: Sequence[Item], rewriter: Rewriter) -> list[Item]:
        """The results of the model's graph `index` for the given inputs, imported at `rewriter`.

        Raises:
            CompileError: there is no such graph.
            NotImportedError: something in it is not supported, which has been noted.
        """
        if not 0 <= index < len(self.model.graphs):
            raise CompileError(f"there is no graph {index}")
        graph = self.model.graphs[index]
        if self.depth == MOST_DEPTH:
            raise CompileError(f"graph {graph.name!r} is in itself")
        if len(given) != len(graph.inputs):
            raise CompileError(
                f"graph {graph.name!r} has {len(graph.inputs)} inputs, but is given {len(given)}"
            )
        scope = Scope(graph, rewriter, dict(zip(graph.inputs, given, strict=True)))
        self.depth += 1
        try:
            self.operators(scope, graph.outputs)
            if not scope.failed.isdisjoint(graph.outputs):
                raise NotImportedError
            return [self.item(scope, number) for number in graph.outputs]
        finally:
            self.depth -= 1


_CHANGING = {"ASSIGN_VARIABLE", "CALL_ONCE"}


def _needed(graph: Graph, wanted: Sequence[int]) -> set[int]:
    """Numbers of the operators that compute wanted tensors, or change variables."""
    needed: set[int] = set()
    tensors = set(wanted)
    for operator in reversed(graph.operators):
        writes = any(graph.tensors[n].is_variable for n in operator.inputs if n != NONE)
        is_changing = operator.name in _CHANGING or writes
        if is_changing or not tensors.isdisjoint(operator.outputs):
            needed.add(operator.number)
            tensors.update(operator.inputs)
    return needed


def _label(graph: Graph, operator: Operator) -> str:
    """The name of an operator's first result, for messages and as origin; only the first part of
    names that a converter has joined.
    """
    if not operator.outputs:
        return f"{operator.name}_{operator.number}"
    return graph.tensors[operator.outputs[0]].name.partition(";")[0]


def _unique(name: str, taken: set[str]) -> str:
    fresh, number = name, 1
    while fresh in taken:
        fresh, number = f"{name}_{number}", number + 1
    return fresh


__all__ = ["DamagedError", "import_model"]
