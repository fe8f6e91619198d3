"""Imports an exported program as a module, node by node; finds everything unsupported first.

The program's graph is functional and in the ops of the table (`exporting.decomposed`). Optimises
nothing; nodes that nothing needs are left out. Buffers that the module changes become inputs and
outputs that are tied, as `Module.states` says.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Union

import numpy as np

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError, InternalError, UnsupportedError
from aot.frontends.lib import extents
from aot.frontends.torch.control import CONTROL, NotImportedError
from aot.frontends.torch.guards import guard_assumptions
from aot.frontends.torch.program import (
    Exported,
    array_of,
    dim_sizes,
    dtype_of,
    is_symbolic,
    is_tensor,
    is_value,
    label_of,
    output_names,
    place_of,
    range_assumptions,
    type_of,
    unique,
    user_inputs,
)
from aot.frontends.torch.table import COMPLEX, TABLE, Complex, Node, UnsupportedNodeError
from aot.ir.dims import DimExpr
from aot.ir.graph import Block, ConstantData, Function, Module, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import DType, TensorType
from aot.ops import lookup

_COMPLEX_TYPES = {"torch.complex64": DType.F32, "torch.complex128": DType.F64}
# Of graphs, that are in nodes, Any.
Item = Union[Value, Complex, DimExpr, int, float, bool, None, list[Any], Any]

# Arguments that do not change what is computed.
_IGNORED = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}
# Checks that torch makes at run time; what they check of shapes, the runtime does as well.
_CHECKS = {
    "aten._assert_async.msg",
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}
SET = ".is_set"  # whether a state that starts with other values than zeros has been assigned yet
NEXT = ".next"


def import_program(exported: Exported, random_seed: int = 0) -> Module:
    """Imports a program as the function "main" of a module; see `import_torch`."""
    return _Importer(exported, random_seed).run()


class _Importer:
    def __init__(self, exported: Exported, random_seed: int) -> None:
        self.exported, self.program = exported, exported.program
        self.random_seed = random_seed
        self.nodes = list(self.program.graph.nodes)
        placeholders = {n.name: n for n in self.nodes if n.op == "placeholder"}
        self.sizes = dim_sizes(exported, placeholders)
        self.placeholders = placeholders
        self.function = Function("main", Block())
        for assumption in (
            *range_assumptions(self.program, self.sizes),
            *guard_assumptions(exported.guards, placeholders, self.sizes),
        ):
            self.function.assumptions[assumption] = None
        self.rewriter = Rewriter(self.function)
        self.values = DimValues(self.function)
        self.items: dict[Any, Item] = {}
        self.failed: set[Any] = set()
        self.unsupported: list[str] = []
        self.weights: dict[tuple[Any, ...], Value] = {}
        self.states: dict[str, tuple[str, int]] = {}
        self.names = output_names(self.program)
        self.taken = {s.arg.name for s in user_inputs(self.program) if is_value(s)}
        self.held: dict[str, str] = {}  # buffers that are changed -> names of their states

    def run(self) -> Module:
        signature = self.program.graph_signature
        needed = _needed(self.nodes)
        mutated = {s.target for s in signature.output_specs if s.kind.name in _KEPT}
        for spec in user_inputs(self.program):
            if is_value(spec):
                self._add_input(spec, needed)
        for spec in signature.input_specs:
            if spec.kind.name != "USER_INPUT":
                self._add_weight(spec, mutated, needed)
        for node in self.nodes:
            if node.op in ("call_function", "get_attr") and node in needed:
                self._add_node(node)
        results = self._results()
        if self.unsupported:
            raise UnsupportedError(
                f"not supported in this model ({len(self.unsupported)}):", self.unsupported
            )
        self.function.result_names = list(results)
        self.function.updates = {
            name: s.target
            for s in signature.output_specs
            if s.kind.name == "USER_INPUT_MUTATION" and (name := f"{s.target}{NEXT}") in results
        }
        self.rewriter.create(lookup("return"), list(results.values()))
        module = Module([self.function])
        module.states.update(self.states)
        return module

    # inputs and weights

    def _argument(self, name: str, type: TensorType) -> Value:
        block = self.function.block
        value = Value(type, block, len(block.args), name)
        block.args.append(value)
        return value

    def _add_input(self, spec: Any, needed: set[Any]) -> None:
        node = self.placeholders[spec.arg.name]
        found = node.meta["val"]
        if not is_tensor(found):
            self.unsupported.append(
                f"input {spec.arg.name!r} is a number that shapes depend on: give it as the extent "
                "of a tensor"
            )
            return
        try:
            self.items[node] = self._argument(spec.arg.name, type_of(found, self.sizes))
        except UnsupportedNodeError as error:
            self.unsupported.append(f"input {spec.arg.name!r}: {error}")
            self.failed.add(node)

    def _add_weight(self, spec: Any, mutated: set[str], needed: set[Any]) -> None:
        node = self.placeholders.get(spec.arg.name)
        if node is None or (node not in needed and spec.target not in mutated):
            return
        try:
            if spec.kind.name not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                raise UnsupportedNodeError(f"a {spec.kind.name.lower()} is not supported")
            tensor = self._contents(spec)
            if spec.target in mutated:
                self.items[node] = self._state(spec.target, tensor)
            else:
                self.items[node] = self._constant(tensor, spec.target)
        except UnsupportedNodeError as error:
            self.unsupported.append(f"{spec.kind.name.lower()} {spec.target!r}: {error}")
            self.failed.add(node)

    def _contents(self, spec: Any) -> Any:
        for place in (self.program.state_dict, self.program.constants):
            if spec.target in place:
                return place[spec.target]
        raise CompileError(f"the program has no contents for {spec.target!r}")

    def _constant(self, tensor: Any, name: str) -> Value:
        """A constant in the tensor's own memory; equal tensors share a constant."""
        dtype_of(tensor.dtype)
        if type(tensor).__name__ == "FakeTensor" or tensor.is_meta:
            raise UnsupportedNodeError("it has no contents")
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in self.weights or tensor.numel() == 0:
            data = ConstantData.borrowed(array_of(tensor))
            self.weights[key] = insert_constant(self.rewriter, data, name)
        return self.weights[key]

    def _state(self, target: str, tensor: Any) -> Value:
        """A state for a buffer that the module changes, initially zero or with the module's
        contents."""
        initial = np.array(array_of(tensor))
        name = f"self.{target}" if target in self.taken else target
        held = self._argument(name, TensorType(DType.of(initial), initial.shape))
        self.held[target] = name
        self.states[name] = (f"{name}{NEXT}", 0)
        if not initial.any():
            return held
        is_set = self._argument(f"{name}{SET}", TensorType(DType.BOOL, ()))
        self.states[is_set.name] = (f"{is_set.name}{NEXT}", 0)
        first = insert_constant(self.rewriter, ConstantData(initial), name)
        return self.rewriter.create(lookup("where"), [is_set, held, first], {}, name).result

    # nodes

    def _add_node(self, node: Any) -> None:
        name = _op_name(node.target)
        if is_symbolic(node.meta.get("val")) and name not in TABLE:
            return  # a size: read where it is used
        if any(source in self.failed for source in node.all_input_nodes):
            self.failed.add(node)
            return
        if node.op == "get_attr":
            self._add_attribute(node)
            return
        if name in _CHECKS:
            return
        try:
            self.items[node] = self._imported(node, name)
        except NotImportedError:
            self.failed.add(node)
        except UnsupportedNodeError as error:
            place = place_of(node)
            where = f"node {label_of(node)!r}" + (f", {place}" if place else "")
            self.unsupported.append(f"{name} ({where}): {error}")
            self.failed.add(node)

    def _add_attribute(self, node: Any) -> None:
        """Adds an attribute node: a graph that another node runs, or a tensor, which becomes a
        constant.
        """
        found = node.graph.owning_module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        self.items[node] = self._constant(found, node.target) if is_tensor(found) else found

    def _imported(self, node: Any, name: str) -> Item:
        if node.target is operator.getitem:
            sequence, index = (self._converted(a) for a in node.args)
            assert isinstance(sequence, list) and isinstance(index, int)
            item: Item = sequence[index]
            return item
        if name in CONTROL:
            return self._controlled(node, name)
        has_complex = any(_is_complex(n) for n in (node, *node.all_input_nodes))
        entry = (COMPLEX if has_complex else TABLE).get(name)
        if entry is None or not hasattr(node.target, "_schema"):
            is_real = not has_complex or name not in TABLE
            raise UnsupportedNodeError(
                _reason(name) if is_real else "complex numbers are not supported here"
            )
        place = self._place(node, name)
        if name == _NUMBER and all(user.op == "output" for user in node.users):
            return place.reshape(self._arguments(node)[0], ())  # whatever it is, it is no size
        built = entry(place, *self._arguments(node))
        results = _stored(place, list(built) if isinstance(built, Sequence) else [built])
        _check_types(place, results)
        self._give_sizes(place, node, results)
        return results if isinstance(built, Sequence) else results[0]

    def _place(self, node: Any, name: str) -> Node:
        types = [self._type(v) for v in _leaves(node.meta.get("val"))]
        where = self.rewriter, self.values, self.random_seed
        return Node(name, label_of(node), types, _wanted(node), *where)

    def _controlled(self, node: Any, name: str) -> list[Any]:
        """The results of an op that contains graphs."""
        place = self._place(node, name)
        found = CONTROL[name](self, place, *(self._converted(a) for a in node.args))
        _check_types(place, found)
        return list(found)

    def subgraph(self, graph: Any, given: Sequence[Any], rewriter: Rewriter) -> list[Value]:
        """Imports a graph inside a node; see `GraphImporter`."""
        outer, self.rewriter = self.rewriter, rewriter
        try:
            nodes = list(graph.graph.nodes)
            arguments = [n for n in nodes if n.op == "placeholder"]
            self.items.update(zip(arguments, given, strict=True))
            needed = _needed(nodes)
            for node in nodes:
                if node.op in ("call_function", "get_attr") and node in needed:
                    self._add_node(node)
            (output,) = (n for n in nodes if n.op == "output")
            results = _leaves(output.args[0])
            if any(node in self.failed for node in results):
                raise NotImportedError
            here = Node("output", "output", [], frozenset(), rewriter, self.values)
            return [here.value(self._converted(node)) for node in results]
        finally:
            self.rewriter = outer

    def _give_sizes(self, place: Node, node: Any, results: Sequence[Any]) -> None:
        """Defines the symbols of data-dependent sizes from the results that a node has just
        produced.
        """
        values = _leaves(node.meta.get("val"))
        for number, (found, value) in enumerate(zip(results, values, strict=False)):
            if number not in place.wanted:
                continue  # an entry gives anything there
            pairs = [(value, found)]
            if is_tensor(value) and isinstance(found, Value):
                pairs = list(zip(value.shape, found.type.dims, strict=True))
            for size, dim in pairs:
                if type(size).__name__ != "SymInt" or isinstance(dim, Value):
                    continue
                name = self.sizes.give(size, dim)
                ranges = {str(s): r for s, r in self.program.range_constraints.items()}
                if name in ranges and ranges[name].upper.is_Integer:
                    most = int(ranges[name].upper)
                    if not self._forgets_broadcast(node, most):
                        extents.bound(place, dim, most, f"a size is at most {most}")

    def _forgets_broadcast(self, node: Any, most: int) -> bool:
        """Whether a bound is torch's for a `masked_select`, which ignores that the mask may
        broadcast the first operand. The entry sets the right one."""
        if str(node.target) != "aten.masked_select.default":
            return False
        x = self._arguments(node)[0]
        return isinstance(x, Value) and most == x.type.element_count

    def _type(self, value: Any) -> TensorType | None:
        if not is_tensor(value):
            return None
        part = _COMPLEX_TYPES.get(str(value.dtype))
        try:
            if part is not None:  # of each of its parts
                return TensorType(part, tuple(self.sizes.dim(n) for n in value.shape))
            return type_of(value, self.sizes)
        except UnsupportedNodeError:
            return None

    def _arguments(self, node: Any) -> list[Any]:
        """The arguments of a node in schema order, with defaults and without ignored ones."""
        found = []
        for number, argument in enumerate(node.target._schema.arguments):
            if number < len(node.args):
                given = node.args[number]
            else:
                given = node.kwargs.get(argument.name, argument.default_value)
            if argument.name not in _IGNORED:
                found.append(self._converted(given))
        return found

    def _converted(self, given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [self._converted(item) for item in given]
        if hasattr(given, "meta") and hasattr(given, "op"):
            if given in self.items:
                return self.items[given]
            return self._number(given.meta.get("val"))
        if type(given).__name__ == "dtype":
            return _COMPLEX_TYPES.get(str(given)) or dtype_of(given)
        if is_symbolic(given):
            return self._number(given)
        return given

    def _number(self, value: Any) -> Any:
        """A size, or a number computed from sizes, as a dim or number."""
        kind = type(value).__name__
        if kind == "SymInt":
            return self.sizes.dim(value)
        if kind in ("SymFloat", "SymBool"):
            expression = value.node.expr
            if expression.is_number:
                return float(expression)
            raise UnsupportedNodeError(f"number {expression} depends on sizes")
        return value

    # results

    def _results(self) -> dict[str, Value]:
        """The function's results by name: the module's outputs, then mutated inputs and buffers."""
        specs = self.program.graph_signature.output_specs
        (output,) = (n for n in self.nodes if n.op == "output")
        names = iter(self.names)
        results: dict[str, Value] = {}
        later: dict[str, Any] = {}
        for spec, node in zip(specs, output.args[0], strict=True):
            kind = spec.kind.name
            if kind == "USER_OUTPUT":
                name = next(names)
                if is_value(spec):
                    self._add_result(results, name, node)
            elif kind in (*_KEPT, "USER_INPUT_MUTATION"):
                later[f"{self.held.get(spec.target, spec.target)}{NEXT}"] = node
            else:
                self.unsupported.append(f"an output of kind {kind.lower()} is not supported")
        for name, node in later.items():
            self._add_result(results, name, node)
            flag = f"{name.removesuffix(NEXT)}{SET}"
            if flag in self.states:
                results[f"{flag}{NEXT}"] = insert_constant(
                    self.rewriter, ConstantData(np.array(True)), flag
                )
        return results

    def _add_result(self, results: dict[str, Value], name: str, node: Any) -> None:
        if node in self.failed:
            return
        try:
            found = self._converted(node)
        except UnsupportedNodeError as error:
            self.unsupported.append(f"output {name!r}: {error}")
            return
        if isinstance(found, Complex):
            self.unsupported.append(f"output {name!r} is complex: give torch.view_as_real of it")
            return
        if not isinstance(found, Value):
            found = Node("output", name, [], frozenset(), self.rewriter, self.values).value(found)
        (fresh,) = unique([name], list(results))
        results[fresh] = found


_KEPT = ("BUFFER_MUTATION", "PARAMETER_MUTATION")


def _is_complex(node: Any) -> bool:
    """Whether a node's value is a complex tensor."""
    return any(
        str(getattr(v, "dtype", "")) in _COMPLEX_TYPES for v in _leaves(node.meta.get("val"))
    )


def _stored(place: Node, results: Sequence[Any]) -> list[Any]:
    """The results in torch's dtypes, where we compute in others, such as float32 for bfloat16."""
    pairs = zip_longest(results, place.types[: len(results)])
    return [found if wanted is None else _in_type(place, found, wanted) for found, wanted in pairs]


def _in_type(place: Node, found: Any, wanted: TensorType) -> Any:
    if isinstance(found, Complex):
        parts = (place.cast(part, wanted.dtype) for part in (found.real, found.imaginary))
        return Complex(*parts)
    is_wide = isinstance(found, Value) and found.type.dtype is wanted.dtype.widens_to
    return place.cast(found, wanted.dtype) if wanted.dtype.is_storage_only and is_wide else found


def _check_types(place: Node, results: Sequence[Any]) -> None:
    """Checks that an entry's results have the types that torch recorded for the node."""
    for number, (found, wanted) in enumerate(zip(results, place.types, strict=False)):
        if not isinstance(found, Value) or wanted is None or number not in place.wanted:
            continue
        is_fit = found.type.dtype is wanted.dtype and len(found.type.dims) == wanted.rank
        if not is_fit or any(
            a != b
            for a, b in zip(found.type.dims, wanted.dims, strict=True)
            if isinstance(a, int) and isinstance(b, int)
        ):
            raise InternalError(
                f"{place.op} (node {place.label!r}): the importer made {found.type}, torch has "
                f"{wanted}"
            )


def _needed(nodes: Sequence[Any]) -> set[Any]:
    """The nodes on which an output depends."""
    found: set[Any] = set()
    for node in reversed(nodes):
        if node.op == "output" or node in found:
            found.add(node)
            found.update(node.all_input_nodes)
    return found


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _wanted(node: Any) -> frozenset[int]:
    """The indices of a node's results that are used; 0 for a single result."""
    if not isinstance(node.meta.get("val"), (list, tuple)):
        return frozenset({0})
    return frozenset(
        user.args[1] for user in node.users if user.target is operator.getitem and user.users
    )


def _op_name(target: Any) -> str:
    """An op's name as torch prints it, without `torch.ops`."""
    return str(target) if hasattr(target, "_schema") else getattr(target, "__name__", str(target))


_NUMBER = "aten._local_scalar_dense.default"
_RANDOM = "it makes random numbers; take them as an input"
_COUNTED = (
    "how many elements it gives is known only when the model runs, and so is the shape of what "
    "follows; end the model before it"
)
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "aten.exponential.default",
            "aten.geometric.default",
            "aten.multinomial.default",
            "aten.native_dropout.default",
            "aten.poisson.default",
            "aten.randperm.default",
        ),
        _RANDOM,
    ),
    **dict.fromkeys(
        ("torchvision.nms.default",),
        _COUNTED,
    ),
}


def _reason(name: str) -> str:
    """Why an op without an entry is rejected."""
    return _REASONS.get(name, "there is no importer for this op")
