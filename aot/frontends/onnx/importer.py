"""Imports an ONNX model as a module: reads it, checks names and order, and imports node by node.

Finds everything that is unsupported before it gives up. Optimises nothing: only nodes that no
output needs are left out, so that what they need is not asked for. What nodes with graphs in them
become is in control.py, loops.py and ops_scan.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Union

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import defs

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError, UnsupportedError
from aot.frontends.lib.metadata import taken
from aot.frontends.onnx import strings
from aot.frontends.onnx.blocks import GraphImporter, Subgraph
from aot.frontends.onnx.choices import Choices, search
from aot.frontends.onnx.control import import_if
from aot.frontends.onnx.functions import Body, body_of, has_body
from aot.frontends.onnx.graphs import (
    domain_of,
    in_order,
    label_of,
    needed,
    producers_of,
    ranks_of,
    read_by,
)
from aot.frontends.onnx.inputs import InputShapes, InputTypes, changed_extents
from aot.frontends.onnx.local_functions import inline_functions
from aot.frontends.onnx.loops import import_loop
from aot.frontends.onnx.ops.scan import import_scan
from aot.frontends.onnx.schema import check_node, find_schema, is_known_domain
from aot.frontends.onnx.scopes import Held, Scope, StackedList, TensorList
from aot.frontends.onnx.sequences import SEQUENCES, TAKING_LISTS
from aot.frontends.onnx.stored import KNOWING, MOVING, NARROW, name_of
from aot.frontends.onnx.strings import STRING, StringTable
from aot.frontends.onnx.table import Node, UnsupportedNodeError, find_entry
from aot.frontends.onnx.tensors import UnsupportedTypeError, tensor_array
from aot.frontends.onnx.weights import BrokenError, Source, without_weights
from aot.ir.dim_limits import OversizedDimError
from aot.ir.dims import Dim, maximum, symbols
from aot.ir.graph import Assumption, Block, ConstantData, Function, Module, Strings, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ir.types import TensorType
from aot.ops import lookup

BLOCKED = "com.microsoft.nchwc"  # of ops whose layout follows the width of a CPU's vectors
MAX_DEPTH = 64  # protobuf's own limit, for a model that was read, is about half of it
MAX_INNER_NODES = 1_000_000  # loops in loops that are compiled run by run

ModelLike = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto]


def import_onnx(
    model: ModelLike,
    *,
    input_shapes: InputShapes | None = None,
    input_values: Mapping[str, Any] | None = None,
    random_seed: int = 0,
) -> Module:
    """Imports a model; the result's function "main" is the model.

    Arguments and results have the model's names; each op's origin is its node's name.

    Args:
        model: a path, the bytes of a file, or a parsed model. External data is found beside a
            path only.
        input_shapes: dims by input name; an int binds, a str names or bounds ("H", "32*h",
            "H:..960"), None or "?" keeps what the model has.
        input_values: contents of inputs that become constants and are no arguments any more.
        random_seed: decides the numbers of random tensors, with the nodes' own seeds or names.

    Raises:
        CompileError: the model or an argument is wrong; names the file and the node.
        UnsupportedError: lists every node that can't be imported, and why.
    """
    where, folder = "model", None
    changes: list[str] = []
    if isinstance(model, (str, os.PathLike)):
        where, folder = os.fspath(model), Path(model).parent
    try:
        with _opened(model) as (parsed, contents):
            proto = inline_functions(parsed)
            changes += changed_extents(proto.graph.input, input_shapes or {})
            module = search(
                lambda choices: _Importer(
                    *(proto, contents, folder, input_shapes or {}, input_values or {}, choices),
                    random_seed,
                ).run()
            )
            module.metadata = taken((p.key, p.value) for p in parsed.metadata_props)
            return module
    except CompileError as error:
        raise CompileError(f"{where}: {error}", changes) from error
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{where}: not supported in this model ({len(error.items)}):", error.items
        ) from error


# The contents of an initializer that the parsed model lacks, by its number; None for one that has
# its own.
Contents = Callable[[int], Union[bytes, None]]


@contextmanager
def _opened(model: ModelLike) -> Iterator[tuple[onnx.ModelProto, Contents]]:
    """Opens a model: (model, reader of large initializers, which stay in the file until
    requested).
    """
    if isinstance(model, onnx.ModelProto):
        yield _checked(model), lambda number: None
        return
    try:
        source = Source(model)
    except OSError as error:
        raise CompileError(f"can't be read: {error.strerror}") from None
    with source:
        places: dict[int, tuple[int, int]] = {}
        try:
            try:
                data, places = without_weights(source)
            except BrokenError:
                data = source.whole()
        except OSError as error:
            raise CompileError(f"can't be read: {error.strerror}") from None
        yield _parsed(data), lambda n: source.read(*places[n]) if n in places else None


def _parsed(data: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError):
        raise CompileError("is not an ONNX model: the protobuf is broken") from None
    return _checked(proto)


def _checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    if not proto.HasField("graph") or not proto.ir_version:
        raise CompileError("is not an ONNX model: it has no graph or no IR version")
    if not _has_only_text(proto):
        raise CompileError("is not an ONNX model: a name in it is not UTF-8")
    return proto


def _has_only_text(proto: onnx.ModelProto) -> bool:
    """Whether all strings are valid UTF-8; protobuf silently returns others as bytes."""
    stack: list[Any] = [proto]
    while stack:
        message = stack.pop()
        if isinstance(message, onnx.TensorProto):
            # not by its fields: to list them copies the contents, which are most of a model
            if not isinstance(message.name, str) or not isinstance(message.doc_string, str):
                return False
            stack += [*message.external_data, *message.metadata_props]
            continue
        for descriptor, value in message.ListFields():
            if descriptor.type == descriptor.TYPE_MESSAGE:
                stack.extend([value] if hasattr(value, "ListFields") else value)
            elif descriptor.type == descriptor.TYPE_STRING:
                texts = [value] if isinstance(value, (str, bytes)) else value
                if any(isinstance(text, bytes) for text in texts):
                    return False
    return True


def _reason(op_type: str, domain: str, opset: int) -> str:
    """Why an op without an entry is rejected."""
    if op_type in strings.COMPUTING:
        return strings.REASON
    has_newer = find_entry(domain, op_type, 1 << 30) is not None
    return "there is no importer for this op" + (f" at opset {opset}" if has_newer else "")


def _refused_kind(node: Node) -> str | None:
    """Why a node is rejected that computes with a storage-only element type; None if it does
    not."""
    for number in range(len(node.inputs)):
        held = node.element_type(number)
        known = strings.KNOWING if held == STRING else KNOWING
        if held is None or node.op_type in MOVING or node.op_type in known:
            continue
        if held == STRING:
            return f"operand {number} is of strings: {strings.REASON}"
        return (
            f"operand {number} is {name_of(held)}, which is only stored; Cast or "
            "DequantizeLinear makes numbers of it"
        )
    return None


# ops with graphs in them
CONTROL: dict[
    str, Callable[[GraphImporter, Node, onnx.NodeProto, Scope], Sequence[Held | None]]
] = {
    "If": import_if,
    "Loop": lambda importer, node, _, scope: import_loop(importer, node, scope),
    "Scan": lambda importer, node, _, scope: import_scan(importer, node, scope),
}


def _is_control(proto: onnx.NodeProto) -> bool:
    return domain_of(proto) == "" and (proto.op_type in CONTROL or proto.op_type in SEQUENCES)


class _Importer:
    def __init__(
        self,
        proto: onnx.ModelProto,
        contents: Contents,
        folder: Path | None,
        shapes: InputShapes,
        values: Mapping[str, Any],
        choices: Choices,
        random_seed: int,
    ) -> None:
        self.choices = choices
        self.random_seed = random_seed
        self.branching: dict[Value, bool] = {}
        self.kinds: dict[Value, int] = {}
        self.inner_nodes = 0
        self.graph = proto.graph
        self.contents = contents
        self.folder = folder
        self.opsets = _opsets(proto)
        initializers = {t.name for t in self.graph.initializer}
        self.infos = [i for i in self.graph.input if i.name not in initializers]
        self.strings = StringTable()
        self.input_types = InputTypes(self.infos, shapes, values, self.strings)
        # One that is listed several times is one: programs give their outputs by name.
        self.outputs = tuple(dict.fromkeys(o.name for o in self.graph.output))

    def run(self) -> Module:
        if not self.graph.output:
            raise CompileError("the model has no outputs")
        types = {
            name: type
            for name, type in self.input_types.types.items()
            if name not in self.input_types.values
        }
        function = Function("main", Block(list(types.values()), list(types)), list(self.outputs))
        function.assumptions.update(dict.fromkeys(self.input_types.assumptions))
        self.rewriter = Rewriter(function)
        declared = {name for type in types.values() for dim in type.dims for name in symbols(dim)}
        self.values = DimValues(function, declared=declared)
        scope = Scope(self.opsets, self.rewriter)
        nodes = self._nodes_of(self.graph, [info.name for info in self.infos], scope)
        scope.known.update(dict.fromkeys((info.name for info in self.infos), None))
        scope.known.update(zip(types, function.inputs, strict=True))
        for name, array in self.input_types.values.items():
            scope.known[name] = insert_constant(self.rewriter, ConstantData(array), name)
        for info in self.infos:
            self._note_kind(scope.known[info.name], info.type.tensor_type.elem_type)
        self._add_initializers(self.graph, scope)
        for node in nodes:
            self._add_node(node, scope)
        unsupported = [
            *self.input_types.unsupported,
            *scope.lacks(nodes, list(self.outputs)),
            *(
                f"output {name!r} is a sequence, and a program gives tensors; give each tensor of "
                "it (SequenceAt), or all joined (ConcatFromSequence)"
                for name in self.outputs
                if isinstance(scope.known[name], (TensorList, StackedList))
            ),
        ]
        if unsupported:
            raise UnsupportedError("not supported:", unsupported)
        held = {name: scope.known[name] for name in self.outputs}
        results = {name: v for name, v in held.items() if isinstance(v, Value)}
        if self.choices.made:
            _check_ranks(results, self.graph)
        self.rewriter.create(lookup("return"), list(results.values()))
        given = dict(zip(types, function.inputs, strict=True))
        function.strings = self._strings({**given, **results})
        function.assumptions.update(dict.fromkeys(_least(types, self.values.taken)))
        return Module([function])

    def _strings(self, named: Mapping[str, Value]) -> Strings | None:
        """The string tensors among `named`, with the model's table; None if there are none."""
        names = tuple(name for name, value in named.items() if self.kinds.get(value) == STRING)
        return Strings(self.strings.texts, names) if names else None

    def _nodes_of(
        self, graph: onnx.GraphProto, inputs: Sequence[str], scope: Scope
    ) -> list[onnx.NodeProto]:
        """The needed nodes of a graph, in order; records in the scope the names that they read."""
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            scope.unsupported.append((name, f"sparse initializer {name!r}"))
        outputs = [o.name for o in graph.output]
        producers = producers_of(graph, inputs, graph.node, scope.has)
        nodes = needed(in_order(graph.node, producers), outputs)
        scope.read = read_by(nodes, outputs)
        scope.ranks = ranks_of(graph)
        return nodes

    def _add_initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        for number, tensor in enumerate(graph.initializer):
            name = tensor.name
            scope.known[name] = None
            if name not in scope.read:
                continue
            try:
                own = self.contents(number) if graph is self.graph else None
                what = f"initializer {name!r}"
                array = tensor_array(tensor, what, self.folder, own, self.strings)
            except UnsupportedTypeError as error:
                scope.unsupported.append((name, f"initializer {name!r}: {error}"))
                continue
            made = insert_constant(scope.rewriter, ConstantData(array), name)
            scope.known[name] = made
            self._note_kind(made, tensor.data_type)

    def _note_kind(self, value: Held | None, elem_type: int) -> None:
        """Records that a value has a storage-only element type."""
        if isinstance(value, Value) and (elem_type in NARROW or elem_type == STRING):
            self.kinds[value] = elem_type

    def _add_node(self, proto: onnx.NodeProto, scope: Scope) -> None:
        label, domain = scope.origin or label_of(proto), domain_of(proto)
        shown = f"{domain}.{proto.op_type}" if domain else proto.op_type
        reason = self._imported(proto, label, domain, scope)
        if reason is None:
            return
        scope.known.update(dict.fromkeys(proto.output, None))
        if reason:
            first = next(name for name in proto.output if name)  # unneeded nodes are left out
            scope.unsupported.append((first, f"{shown} (node {label!r}): {reason}"))

    def _imported(self, proto: onnx.NodeProto, label: str, domain: str, scope: Scope) -> str | None:
        """Imports a node. Returns None, or the reason why not; "" if only its operands are to
        blame."""
        opset = scope.opsets.get(domain)
        if domain == BLOCKED:
            return (
                "this ONNX file was written by ONNX Runtime's optimiser for one machine; give the "
                "model that it was made from"
            )
        if opset is None:
            if domain in ("", "ai.onnx.ml"):
                raise CompileError(
                    f"{proto.op_type} (node {label!r}): the model imports no opset "
                    f"of domain {domain!r}"
                )
            return f"domain {domain!r} is not known"
        schema = find_schema(domain, proto.op_type, opset)
        if schema is None and domain == "":
            raise CompileError(f"there is no op {proto.op_type} in opset {opset} (node {label!r})")
        if schema is None and not is_known_domain(domain):
            return f"domain {domain!r} is not known"
        if schema is None:
            return f"there is no op {proto.op_type} in version {opset} of domain {domain!r}"
        if not (_is_control(proto) or has_body(schema) or find_entry(domain, proto.op_type, opset)):
            return _reason(proto.op_type, domain, opset)
        inputs: list[Value | None] = []
        lists: dict[int, TensorList | StackedList] = {}
        for number, name in enumerate(proto.input):
            value = scope.find(name) if name else None
            if name and value is None:
                return ""
            if isinstance(value, (TensorList, StackedList)):
                lists[number] = value
            inputs.append(value if isinstance(value, Value) else None)
        if lists and domain + proto.op_type not in (*SEQUENCES, *TAKING_LISTS, "Loop"):
            return f"operand {min(lists)} is a sequence of tensors, expected a tensor"
        while inputs and inputs[-1] is None and len(inputs) - 1 not in lists:
            inputs.pop()
        outputs = [name if name in scope.read else "" for name in proto.output]
        node = Node(
            proto.op_type,
            label,
            opset,
            inputs,
            outputs,
            {a.name: a for a in proto.attribute},
            scope.rewriter,
            self.values,
            self.folder,
            lists,
            self.kinds,
            self.random_seed,
            self.strings,
            scope.ranks,
        )
        check_node(node, schema)
        refused = _refused_kind(node)
        if refused is not None:
            return refused
        try:
            results = self._results(node, proto, schema, domain, scope)
        except UnsupportedNodeError as error:
            return str(error)
        except OversizedDimError as error:
            raise node.error(str(error)) from error
        moved = node.element_type(strings.SOURCE.get(node.op_type, len(inputs)))
        if moved is not None:
            for value in results:
                self._note_kind(value, moved)
        for number, name in enumerate(proto.output):
            value = results[number] if number < len(results) else None
            if value is None and node.wants(number):
                return f"output {number} is not supported"
            if name:
                scope.known[name] = value
        return None

    def _results(
        self, node: Node, proto: onnx.NodeProto, schema: defs.OpSchema, domain: str, scope: Scope
    ) -> Sequence[Held | None]:
        """The node's outputs, from its entry or from ONNX's function body of the op.

        Raises:
            UnsupportedNodeError: neither is there, or does what the node asks for.
        """
        if domain == "" and node.op_type in CONTROL:
            return CONTROL[node.op_type](self, node, proto, scope)
        if domain == "" and (node.op_type in SEQUENCES or node.lists):
            build = SEQUENCES.get(node.op_type) or TAKING_LISTS[node.op_type]
            return build(self, node, proto, scope)
        entry = find_entry(domain, node.op_type, node.opset)
        reason = _reason(node.op_type, domain, node.opset)
        if entry is not None:
            try:
                built = entry.build(node)
                unread = node.unread_attributes()
                if not unread:
                    return [built] if isinstance(built, Value) else list(built)
                reason = f"attribute {', '.join(map(repr, unread))} is not supported"
            except UnsupportedNodeError as error:
                reason = str(error)
        body = body_of(proto, schema, scope.opsets, node.inputs)
        if body is None:
            raise UnsupportedNodeError(reason)
        results, lacks = self._body(node, body)
        if lacks:
            # what the entry lacks says more than what the definition does
            raise UnsupportedNodeError(
                f"its definition uses {lacks[0]}" if entry is None else reason
            )
        return results

    def _body(self, node: Node, body: Body) -> tuple[Sequence[Held | None], list[str]]:
        """(outputs, unsupported parts) of a node, imported by its function body."""
        outputs = [name for number, name in enumerate(body.outputs) if node.wants(number)]
        padded = [*node.inputs, *[None] * (len(body.inputs) - len(node.inputs))]
        scope = Scope(body.opsets, node.rewriter, origin=node.label)
        scope.known.update(zip(body.inputs, padded, strict=True))
        nodes = needed(body.nodes, outputs)
        scope.read = read_by(nodes, outputs)
        for inner in nodes:
            self._add_node(inner, scope)
        results = [scope.known[name] if name in outputs else None for name in body.outputs]
        return results, scope.lacks(nodes, outputs)

    def subgraph(
        self, graph: onnx.GraphProto, given: Mapping[str, Held], outer: Scope, rewriter: Rewriter
    ) -> Subgraph:
        """Imports a graph in a node; see `GraphImporter`."""
        if outer.depth == MAX_DEPTH:
            raise CompileError(f"subgraphs are nested deeper than {MAX_DEPTH}")
        scope = Scope(
            outer.opsets, rewriter, outer=outer, origin=outer.origin, depth=outer.depth + 1
        )
        nodes = self._nodes_of(graph, list(given), scope)
        self.inner_nodes += len(nodes)
        if self.inner_nodes > MAX_INNER_NODES:
            raise CompileError(f"its control flow makes more than {MAX_INNER_NODES} nodes")
        scope.known.update(given)
        self._add_initializers(graph, scope)
        for inner in nodes:
            self._add_node(inner, scope)
        outputs = [output.name for output in graph.output]
        return Subgraph([scope.find(name) for name in outputs], scope.lacks(nodes, outputs))


def _least(
    types: Mapping[str, TensorType], taken: Mapping[Dim, tuple[int, str]]
) -> Iterator[Assumption]:
    """Assumptions that divisors and dividends of integer divisions are at least as large as the
    import assumed.
    """
    inputs = {
        dim: f"input {name!r}: dim {axis}"
        for name, type in types.items()
        for axis, dim in enumerate(type.dims)
    }
    for dim, (least, node) in taken.items():
        what = inputs.get(dim) or f"{node}: {dim}, which an integer division depends on,"
        yield Assumption(maximum(dim, least), dim, f"{what} must be at least {least}")


def _check_ranks(results: Mapping[str, Value | None], graph: onnx.GraphProto) -> None:
    """Checks that outputs have the ranks that the model declares, whichever branches were
    chosen."""
    ranks = ranks_of(graph)
    for name, value in results.items():
        wanted = ranks.get(name)
        if value is not None and wanted not in (None, value.type.rank):
            raise CompileError(
                f"output {name!r} would be {value.type}, the model says that it has {wanted} dims"
            )


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """The opset version of each domain.

    Raises:
        CompileError: none is imported, or one that ONNX, as installed, does not know yet.
    """
    found: dict[str, int] = {}
    for opset in proto.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        found[domain] = int(opset.version)
    if not found:
        raise CompileError("the model imports no opset")
    newest = defs.onnx_opset_version()
    if not 1 <= found.get("", 1) <= newest:
        raise CompileError(
            f"the model uses opset {found['']}, which is not known; expected 1 to {newest}"
        )
    return found
