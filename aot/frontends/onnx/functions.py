"""ONNX's function bodies: definitions of ops by smaller ones, for ops that have no entry.

A body is chosen by the model's opset, made for the node's operands where it depends on them, and
has the node's attributes put in. Imports nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import defs, helper

from aot.base.records import dataclass
from aot.frontends.onnx.tensors import DTYPES
from aot.ir.graph import Value

_ELEM_TYPES = {dtype: elem for elem, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Body:
    """The function body of a node: the smaller nodes that define it.

    Attributes:
        inputs: formal names, in the order of the node's operands.
        outputs: formal names, in the order of the node's outputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]
    opsets: Mapping[str, int]


def body_of(
    proto: onnx.NodeProto,
    schema: defs.OpSchema,
    opsets: Mapping[str, int],
    inputs: Sequence[Value | None],
) -> Body | None:
    """The function body that defines `proto`; None where ONNX has none.

    Args:
        opsets: versions of domains where the node stands.
        inputs: the node's operands; None where an optional one is absent.
    """
    function = _function(proto, schema, opsets[schema.domain], inputs)
    if function is None:
        return None
    absent = {
        name
        for number, name in enumerate(function.input)
        if number >= len(inputs) or inputs[number] is None
    }
    bindings = {a.name: a for a in proto.attribute}
    for name, attribute in schema.attributes.items():
        if name not in bindings and attribute.default_value.type:
            bindings[name] = attribute.default_value
    nodes = tuple(_bound(node, bindings, absent) for node in function.node)
    own = {"" if o.domain == "ai.onnx" else o.domain: int(o.version) for o in function.opset_import}
    return Body(tuple(function.input), tuple(function.output), nodes, {**opsets, **own})


def has_body(schema: defs.OpSchema) -> bool:
    """Whether ONNX defines the op by smaller ones, at least for some operands."""
    described: Any = schema
    return bool(described.has_function or described.has_context_dependent_function)


def _function(
    proto: onnx.NodeProto, schema: defs.OpSchema, opset: int, inputs: Sequence[Value | None]
) -> onnx.FunctionProto | None:
    """The function body from the newest opset up to the model's; from the oldest one, where the op
    got a body only later."""
    described: Any = schema  # its stubs lack what is asked here
    plain = described.function_opset_versions
    made = described.context_dependent_function_opset_versions
    versions = sorted({*plain, *made})
    if not versions:
        return None
    version = max((v for v in versions if v <= opset), default=versions[0])
    if version in plain:
        text = described.get_function_with_opset_version(version)
    else:
        node = onnx.NodeProto()
        node.CopyFrom(proto)
        text = described.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), [_type_of(v) for v in inputs]
        )
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    # a builder that can't say what these operands mean gives an empty function
    return function if function.node and len(function.input) >= len(inputs) else None


def _type_of(value: Value | None) -> bytes:
    if value is None:
        return b""
    dims = [d if isinstance(d, int) else str(d) for d in value.type.dims]
    made = helper.make_tensor_type_proto(_ELEM_TYPES[value.type.dtype], dims)
    return bytes(made.SerializeToString())


def _bound(node: onnx.NodeProto, bindings: Mapping[str, Any], absent: set[str]) -> onnx.NodeProto:
    """The node with references to the function's attributes resolved, and absent operands
    dropped."""
    found = onnx.NodeProto()
    found.CopyFrom(node)
    del found.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept = found.attribute.add()
            kept.CopyFrom(attribute)
            _bind_inside(kept, bindings, absent)
        elif attribute.ref_attr_name in bindings:
            kept = found.attribute.add()
            kept.CopyFrom(bindings[attribute.ref_attr_name])
            kept.name = attribute.name
    for number, name in enumerate(found.input):
        if name in absent:
            found.input[number] = ""
    return found


def _bind_inside(
    attribute: onnx.AttributeProto, bindings: Mapping[str, Any], absent: set[str]
) -> None:
    graphs = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    for graph in graphs:
        fresh = [_bound(node, bindings, absent) for node in graph.node]
        del graph.node[:]
        graph.node.extend(fresh)
