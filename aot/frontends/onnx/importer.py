"""From an ONNX model to a module: reads, checks names and order, and imports node by node.

Finds everything that is unsupported before it gives up. Optimises nothing: only nodes that no
output needs are left out, so that what they need is not asked for.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import defs, inliner

from aot.analysis.dim_values import DimValues
from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx.inputs import InputShapes, InputTypes
from aot.frontends.onnx.schema import check_node, find_schema
from aot.frontends.onnx.table import Node, UnsupportedNodeError, find_entry
from aot.frontends.onnx.tensors import UnsupportedTypeError, tensor_array
from aot.ir.core import Block, ConstantData, Function, Module, Rewriter, Value
from aot.ops import lookup

ModelLike = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto]


def import_onnx(model: ModelLike, *, input_shapes: InputShapes | None = None,
                input_values: Mapping[str, Any] | None = None) -> Module:
    """A module whose function "main" is the model.

    Arguments and results have the model's names; each op's origin is its node's name.

    Args:
        model: a path, the bytes of a file, or a parsed model. External data is found beside a
            path only.
        input_shapes: dims by input name; an int binds, a str names, None keeps what the model has.
        input_values: contents of inputs that become constants and are no arguments any more.

    Raises:
        CompileError: the model or an argument is wrong; names the file and the node.
        UnsupportedError: lists every node that can't be imported, and why.
    """
    where, folder = "model", None
    if isinstance(model, (str, os.PathLike)):
        where, folder = os.fspath(model), Path(model).parent
    try:
        proto = _inlined(_parsed(model))
        return _Importer(proto, folder, input_shapes or {}, input_values or {}).run()
    except CompileError as error:
        raise CompileError(f"{where}: {error}") from error
    except UnsupportedError as error:
        raise UnsupportedError(f"{where}: not supported in this model ({len(error.items)}):",
                               error.items) from error


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


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with calls of its own functions replaced by their bodies."""
    if not proto.functions:
        return proto
    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:  # the inliner raises plain C++ exceptions
        raise CompileError(f"its functions can't be inlined: {error}") from None


def _label(node: onnx.NodeProto) -> str:
    """What the node is called in messages and as the origin of ops."""
    first = next((name for name in node.output if name), "")
    return node.name or f"{node.op_type}:{first}"


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


class _Importer:
    def __init__(self, proto: onnx.ModelProto, folder: Path | None, shapes: InputShapes,
                 values: Mapping[str, Any]) -> None:
        self.graph = proto.graph
        self.folder = folder
        self.opsets = _opsets(proto)
        self.unsupported: list[str] = []
        self.initializers = {t.name: t for t in self.graph.initializer}
        self.infos = [i for i in self.graph.input if i.name not in self.initializers]
        self.input_types = InputTypes(self.infos, shapes, values)
        self.unsupported.extend(self.input_types.unsupported)
        for sparse in self.graph.sparse_initializer:
            self.unsupported.append(f"sparse initializer {sparse.values.name!r}")
        self.known: dict[str, Value | None] = {}  # None: known by name, but not supported

    def run(self) -> Module:
        if not self.graph.output:
            raise CompileError("the model has no outputs")
        producers = self._producers()
        nodes = self._needed(_in_order(self.graph.node, producers), producers)
        types = {name: type for name, type in self.input_types.types.items()
                 if name not in self.input_types.values}
        function = Function("main", Block(list(types.values()), list(types)),
                            [o.name for o in self.graph.output])
        self.rewriter = Rewriter(function)
        self.values = DimValues(function)
        self.known.update(dict.fromkeys((info.name for info in self.infos), None))
        self.known.update(zip(types, function.inputs, strict=True))
        for name, array in self.input_types.values.items():
            self.known[name] = self._constant(array, name)
        self.read = {name for node in nodes for name in node.input}
        self.read.update(o.name for o in self.graph.output)
        self._add_initializers()
        for node in nodes:
            self._add_node(node)
        if self.unsupported:
            raise UnsupportedError("not supported:", self.unsupported)
        results = [self.known[o.name] for o in self.graph.output]
        self.rewriter.create(lookup("return"), results)
        return Module([function])

    def _constant(self, array: Any, origin: str) -> Value:
        return self.rewriter.create(lookup("constant"), [], {"value": ConstantData(array)},
                                    origin).result

    def _add_initializers(self) -> None:
        for name, tensor in self.initializers.items():
            self.known[name] = None
            if name not in self.read:
                continue
            try:
                array = tensor_array(tensor, f"initializer {name!r}", self.folder)
            except UnsupportedTypeError as error:
                self.unsupported.append(f"initializer {name!r}: {error}")
                continue
            self.known[name] = self._constant(array, name)

    def _producers(self) -> dict[str, int]:
        """Number of the node that makes each name; -1 for inputs and initializers.

        Raises:
            CompileError: a name is made twice, or read or promised and never made.
        """
        producers: dict[str, int] = {}

        def add(name: str, number: int, what: str) -> None:
            if name in producers:
                raise CompileError(f"{what} {name!r}: another input, initializer or node has that "
                                   "name already")
            producers[name] = number

        for info in self.infos:
            add(info.name, -1, "input")
        for tensor in self.graph.initializer:
            add(tensor.name, -1, "initializer")
        for sparse in self.graph.sparse_initializer:
            add(sparse.values.name, -1, "sparse initializer")
        for number, node in enumerate(self.graph.node):
            for name in node.output:
                if name:
                    add(name, number, f"{node.op_type} (node {_label(node)!r}): output")
        for node in self.graph.node:
            for name in node.input:
                if name and name not in producers:
                    raise CompileError(f"{node.op_type} (node {_label(node)!r}): operand {name!r} "
                                       "is no input, initializer or other node's output")
        for output in self.graph.output:
            if output.name not in producers:
                raise CompileError(f"output {output.name!r} is made by no node")
        return producers

    def _needed(self, ordered: Sequence[onnx.NodeProto],
                producers: Mapping[str, int]) -> list[onnx.NodeProto]:
        """The nodes that an output depends on, in order."""
        wanted = {o.name for o in self.graph.output}
        kept: list[onnx.NodeProto] = []
        for node in reversed(ordered):
            if any(name in wanted for name in node.output if name):
                kept.append(node)
                wanted.update(node.input)
                wanted.update(name for name in _captured(node) if name in producers)
        return kept[::-1]

    def _add_node(self, proto: onnx.NodeProto) -> None:
        label, domain = _label(proto), _domain(proto)
        shown = f"{domain}.{proto.op_type}" if domain else proto.op_type
        reason = self._imported(proto, label, domain)
        if reason is None:
            return
        self.known.update(dict.fromkeys(proto.output, None))
        if reason:
            self.unsupported.append(f"{shown} (node {label!r}): {reason}")

    def _imported(self, proto: onnx.NodeProto, label: str, domain: str) -> str | None:
        """Imports a node. Returns None, or why not; "" if only what it reads is to blame."""
        opset = self.opsets.get(domain)
        if opset is None:
            if domain in ("", "ai.onnx.ml"):
                raise CompileError(f"{proto.op_type} (node {label!r}): the model imports no opset "
                                   f"of domain {domain!r}")
            return f"domain {domain!r} is not known"
        schema = find_schema(domain, proto.op_type, opset)
        entry = find_entry(domain, proto.op_type, opset)
        if schema is None and domain == "":
            raise CompileError(f"there is no op {proto.op_type} in opset {opset} "
                               f"(node {label!r})")
        if entry is None or schema is None:
            return "there is no importer for this op" + (
                f" at opset {opset}" if (find_entry(domain, proto.op_type, 1 << 30)) else "")
        inputs: list[Value | None] = []
        for name in proto.input:
            value = self.known[name] if name else None
            if name and value is None:
                return ""
            inputs.append(value)
        while inputs and inputs[-1] is None:
            inputs.pop()
        outputs = [name if name in self.read else "" for name in proto.output]
        node = Node(proto.op_type, label, opset, inputs, outputs,
                    {a.name: a for a in proto.attribute}, self.rewriter, self.values, self.folder)
        check_node(node, schema)
        try:
            built = entry.build(node)
        except UnsupportedNodeError as error:
            return str(error)
        unread = node.unread_attributes()
        if unread:
            return f"attribute {', '.join(map(repr, unread))} is not supported"
        results = [built] if isinstance(built, Value) else list(built)
        for number, name in enumerate(proto.output):
            value = results[number] if number < len(results) else None
            if value is None and node.wants(number):
                return f"output {number} is not supported"
            if name:
                self.known[name] = value
        return None


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
        raise CompileError(f"the model uses opset {found['']}, which is not known; expected 1 to "
                           f"{newest}")
    return found


def _captured(node: onnx.NodeProto) -> set[str]:
    """Names that the node's subgraphs may read from outside."""
    found: set[str] = set()
    graphs = [g for a in node.attribute for g in [*([a.g] if a.HasField("g") else []), *a.graphs]]
    while graphs:
        graph = graphs.pop()
        found.update(output.name for output in graph.output)
        for inner in graph.node:
            found.update(inner.input)
            graphs.extend(g for a in inner.attribute
                          for g in [*([a.g] if a.HasField("g") else []), *a.graphs])
    return found


def _in_order(nodes: Sequence[onnx.NodeProto],
              producers: Mapping[str, int]) -> list[onnx.NodeProto]:
    """The nodes with producers before readers, else in the model's order.

    Raises:
        CompileError: nodes depend on each other in a circle.
    """
    waiting = [0] * len(nodes)
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        names = {*node.input, *_captured(node)}
        sources = {producers.get(name, -1) for name in names} - {-1}
        waiting[number] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(number)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[onnx.NodeProto] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(nodes[number])
        for reader in readers.get(number, []):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [repr(_label(n)) for number, n in enumerate(nodes) if waiting[number]]
        raise CompileError(f"nodes depend on each other in a circle: {', '.join(stuck[:5])}"
                           + (", ..." if len(stuck) > 5 else ""))
    return order
