"""From an ONNX model to a module: reads, checks names and order, and imports node by node.

Finds everything that is unsupported before it gives up. Optimises nothing: only nodes that no
output needs are left out, so that what they need is not asked for; and an If with a known condition
is the branch that it takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import defs

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx.functions import Body, body_of, has_body
from aot.frontends.onnx.graphs import (
    captured,
    captured_by,
    domain_of,
    in_order,
    label_of,
    needed,
    producers_of,
    read_by,
)
from aot.frontends.onnx.inputs import InputShapes, InputTypes
from aot.frontends.onnx.local_functions import inline_functions
from aot.frontends.onnx.schema import check_node, find_schema
from aot.frontends.onnx.table import Node, UnsupportedNodeError, find_entry
from aot.frontends.onnx.tensors import UnsupportedTypeError, tensor_array
from aot.ir.core import Block, ConstantData, Function, Module, Rewriter, Value
from aot.ops import lookup
from aot.ops.structure import insert_constant

MAX_BRANCH_DEPTH = 64  # protobuf's own limit, for a model that was read, is about half of it

ModelLike = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto]


def import_onnx(
    model: ModelLike,
    *,
    input_shapes: InputShapes | None = None,
    input_values: Mapping[str, Any] | None = None,
) -> Module:
    """A module whose function "main" is the model.

    Arguments and results have the model's names; each op's origin is its node's name.

    Args:
        model: a path, the bytes of a file, or a parsed model. External data is found beside a
            path only.
        input_shapes: dims by input name; an int binds, a str names or bounds ("H", "32*h",
            "H<=960"), None or "?" keeps what the model has.
        input_values: contents of inputs that become constants and are no arguments any more.

    Raises:
        CompileError: the model or an argument is wrong; names the file and the node.
        UnsupportedError: lists every node that can't be imported, and why.
    """
    where, folder = "model", None
    if isinstance(model, (str, os.PathLike)):
        where, folder = os.fspath(model), Path(model).parent
    try:
        proto = inline_functions(_parsed(model))
        return _Importer(proto, folder, input_shapes or {}, input_values or {}).run()
    except CompileError as error:
        raise CompileError(f"{where}: {error}") from error
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{where}: not supported in this model ({len(error.items)}):", error.items
        ) from error


def _parsed(model: ModelLike) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        proto = model
    else:
        if isinstance(model, bytes):
            data = model
        else:
            try:
                data = Path(model).read_bytes()
            except OSError as error:
                raise CompileError(f"can't be read: {error.strerror}") from None
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(data)
        except (DecodeError, RuntimeError):
            raise CompileError("is not an ONNX model: the protobuf is broken") from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise CompileError("is not an ONNX model: it has no graph or no IR version")
    if not _has_only_text(proto):
        raise CompileError("is not an ONNX model: a name in it is not UTF-8")
    return proto


def _has_only_text(proto: onnx.ModelProto) -> bool:
    """Whether all strings decode; protobuf gives the others as bytes, without a word."""
    stack: list[Any] = [proto]
    while stack:
        for descriptor, value in stack.pop().ListFields():
            if descriptor.type == descriptor.TYPE_MESSAGE:
                stack.extend([value] if hasattr(value, "ListFields") else value)
            elif descriptor.type == descriptor.TYPE_STRING:
                texts = [value] if isinstance(value, (str, bytes)) else value
                if any(isinstance(text, bytes) for text in texts):
                    return False
    return True


@dataclass
class _Scope:
    """What a list of nodes sees, and where it reports what it can't have.

    Attributes:
        unsupported: (name that can't be had, why).
        known: values by name; None for a name whose value is not supported.
        read: names that something reads.
        captured: names that the taken branch of an If reads, by the If's first output.
        outer: the scope around a branch, whose names are seen too.
        origin: the node whose definition the list is; "" where nodes speak for themselves.
        depth: branches around the list.
    """

    opsets: Mapping[str, int]
    unsupported: list[tuple[str, str]] = field(default_factory=list)
    known: dict[str, Value | None] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    captured: dict[str, set[str]] = field(default_factory=dict)
    outer: _Scope | None = None
    origin: str = ""
    depth: int = 0

    def find(self, name: str) -> Value | None:
        scope = self._scope_of(name)
        return None if scope is None else scope.known[name]

    def has(self, name: str) -> bool:
        return self._scope_of(name) is not None

    def lacks(self, nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[str]:
        """Why the outputs can't be had. What only branches that are not taken read is no reason."""
        wanted = set(outputs)
        for node in reversed(nodes):
            names = [name for name in node.output if name]
            if wanted.isdisjoint(names):
                continue
            inner = self.captured.get(names[0])
            wanted.update(names, node.input, captured(node) if inner is None else inner)
        return [why for name, why in self.unsupported if name in wanted]

    def _scope_of(self, name: str) -> _Scope | None:
        scope: _Scope | None = self
        while scope is not None and name not in scope.known:
            scope = scope.outer
        return scope


# what an op without an entry is refused for, where more can be said
_REASONS = {
    "Loop": "loops that run a number of times known only at run time are not supported",
    "NonMaxSuppression": "how many boxes it selects is known only when the model runs, and so is "
    "the shape of what follows; end the model before it",
    "Unique": "how many distinct elements there are is known only when the model runs, and so is "
    "the shape of what follows; end the model before it",
    "Scan": "loops over slices of a tensor are not supported",
}


def _reason(op_type: str, domain: str, opset: int) -> str:
    """Why an op without an entry is refused."""
    if domain == "" and op_type in _REASONS:
        return _REASONS[op_type]
    has_newer = find_entry(domain, op_type, 1 << 30) is not None
    return "there is no importer for this op" + (f" at opset {opset}" if has_newer else "")


def _is_if(proto: onnx.NodeProto) -> bool:
    return bool(domain_of(proto) == "" and proto.op_type == "If")


class _Importer:
    def __init__(
        self,
        proto: onnx.ModelProto,
        folder: Path | None,
        shapes: InputShapes,
        values: Mapping[str, Any],
    ) -> None:
        self.graph = proto.graph
        self.folder = folder
        self.opsets = _opsets(proto)
        initializers = {t.name for t in self.graph.initializer}
        self.infos = [i for i in self.graph.input if i.name not in initializers]
        self.input_types = InputTypes(self.infos, shapes, values)

    def run(self) -> Module:
        if not self.graph.output:
            raise CompileError("the model has no outputs")
        types = {
            name: type
            for name, type in self.input_types.types.items()
            if name not in self.input_types.values
        }
        function = Function(
            "main", Block(list(types.values()), list(types)), [o.name for o in self.graph.output]
        )
        function.assumptions.update(dict.fromkeys(self.input_types.assumptions))
        self.rewriter = Rewriter(function)
        self.values = DimValues(function)
        scope = _Scope(self.opsets)
        nodes = self._nodes_of(self.graph, [info.name for info in self.infos], scope)
        scope.known.update(dict.fromkeys((info.name for info in self.infos), None))
        scope.known.update(zip(types, function.inputs, strict=True))
        for name, array in self.input_types.values.items():
            scope.known[name] = self._constant(array, name)
        self._add_initializers(self.graph, scope)
        for node in nodes:
            self._add_node(node, scope)
        unsupported = [
            *self.input_types.unsupported,
            *scope.lacks(nodes, [o.name for o in self.graph.output]),
        ]
        if unsupported:
            raise UnsupportedError("not supported:", unsupported)
        results = [scope.known[o.name] for o in self.graph.output]
        self.rewriter.create(lookup("return"), results)
        return Module([function])

    def _nodes_of(
        self, graph: onnx.GraphProto, inputs: Sequence[str], scope: _Scope
    ) -> list[onnx.NodeProto]:
        """The nodes that are needed, in order; notes in the scope which names they read."""
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            scope.unsupported.append((name, f"sparse initializer {name!r}"))
        outputs = [o.name for o in graph.output]
        producers = producers_of(graph, inputs, graph.node, scope.has)
        nodes = needed(in_order(graph.node, producers), outputs)
        scope.read = read_by(nodes, outputs)
        return nodes

    def _constant(self, array: Any, origin: str) -> Value:
        return insert_constant(self.rewriter, ConstantData(array), origin)

    def _add_initializers(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        for tensor in graph.initializer:
            name = tensor.name
            scope.known[name] = None
            if name not in scope.read:
                continue
            try:
                array = tensor_array(tensor, f"initializer {name!r}", self.folder)
            except UnsupportedTypeError as error:
                scope.unsupported.append((name, f"initializer {name!r}: {error}"))
                continue
            scope.known[name] = self._constant(array, name)

    def _add_node(self, proto: onnx.NodeProto, scope: _Scope) -> None:
        label, domain = scope.origin or label_of(proto), domain_of(proto)
        shown = f"{domain}.{proto.op_type}" if domain else proto.op_type
        reason = self._imported(proto, label, domain, scope)
        if reason is None:
            return
        scope.known.update(dict.fromkeys(proto.output, None))
        if reason:
            first = next(name for name in proto.output if name)  # unneeded nodes are left out
            scope.unsupported.append((first, f"{shown} (node {label!r}): {reason}"))

    def _imported(
        self, proto: onnx.NodeProto, label: str, domain: str, scope: _Scope
    ) -> str | None:
        """Imports a node. Returns None, or why not; "" if only what it reads is to blame."""
        opset = scope.opsets.get(domain)
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
        if schema is None:
            return f"there is no op {proto.op_type} in version {opset} of domain {domain!r}"
        if not (_is_if(proto) or has_body(schema) or find_entry(domain, proto.op_type, opset)):
            return _reason(proto.op_type, domain, opset)
        inputs: list[Value | None] = []
        for name in proto.input:
            value = scope.find(name) if name else None
            if name and value is None:
                return ""
            inputs.append(value)
        while inputs and inputs[-1] is None:
            inputs.pop()
        outputs = [name if name in scope.read else "" for name in proto.output]
        node = Node(
            proto.op_type,
            label,
            opset,
            inputs,
            outputs,
            {a.name: a for a in proto.attribute},
            self.rewriter,
            self.values,
            self.folder,
        )
        check_node(node, schema)
        try:
            results = self._results(node, proto, schema, domain, scope)
        except UnsupportedNodeError as error:
            return str(error)
        for number, name in enumerate(proto.output):
            value = results[number] if number < len(results) else None
            if value is None and node.wants(number):
                return f"output {number} is not supported"
            if name:
                scope.known[name] = value
        return None

    def _results(
        self, node: Node, proto: onnx.NodeProto, schema: defs.OpSchema, domain: str, scope: _Scope
    ) -> Sequence[Value | None]:
        """The node's outputs: by its entry, or else by ONNX's own definition of the op.

        Raises:
            UnsupportedNodeError: neither is there, or does what the node asks for.
        """
        if _is_if(proto):
            return self._taken_branch(node, proto, scope)
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

    def _body(self, node: Node, body: Body) -> tuple[Sequence[Value | None], list[str]]:
        """Imports what the node means in smaller ops, with names of its own; also gives what in
        it is not supported."""
        outputs = [name for number, name in enumerate(body.outputs) if node.wants(number)]
        padded = [*node.inputs, *[None] * (len(body.inputs) - len(node.inputs))]
        scope = _Scope(body.opsets, origin=node.label)
        scope.known.update(zip(body.inputs, padded, strict=True))
        nodes = needed(body.nodes, outputs)
        scope.read = read_by(nodes, outputs)
        for inner in nodes:
            self._add_node(inner, scope)
        results = [scope.known[name] if name in outputs else None for name in body.outputs]
        return results, scope.lacks(nodes, outputs)

    def _taken_branch(
        self, node: Node, proto: onnx.NodeProto, outer: _Scope
    ) -> Sequence[Value | None]:
        """Imports the branch of an If whose condition is known; the other one is not looked at."""
        known = self.values.known(node.input(0))
        if known is None or known.dtype == object:
            raise UnsupportedNodeError(
                "its condition is known only when the model runs; give the inputs that it depends "
                "on a value (input_values, --input-value), or a shape"
            )
        if known.size != 1:
            raise node.error(f"the condition has {known.size} elements, expected 1")
        graph = node.attribute("then_branch" if known.reshape(()).item() else "else_branch").g
        if len(graph.output) < len(node.outputs):
            raise node.error(
                f"has {len(node.outputs)} outputs, but its branch gives {len(graph.output)}"
            )
        if graph.input:
            raise node.error("its branch has inputs, which a branch never has")
        if outer.depth == MAX_BRANCH_DEPTH:
            raise node.error(f"branches are nested deeper than {MAX_BRANCH_DEPTH}")
        scope = _Scope(outer.opsets, outer=outer, origin=outer.origin, depth=outer.depth + 1)
        nodes = self._nodes_of(graph, (), scope)
        self._add_initializers(graph, scope)
        for inner in nodes:
            self._add_node(inner, scope)
        outputs = [output.name for output in graph.output]
        found = [scope.find(name) for name in outputs]
        first = next(name for name in proto.output if name)
        outer.captured[first] = captured_by(graph)
        outer.unsupported.extend((first, why) for why in scope.lacks(nodes, outputs))
        if None in found:
            raise UnsupportedNodeError("")  # whose fault it is has been said
        return found


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """Version by domain.

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
