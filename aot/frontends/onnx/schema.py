"""Nodes against ONNX's own schemas: operand counts, element types, required attributes.

What passes is a valid use of the op, so that whatever an entry then refuses is our limit and not
the user's mistake.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import AttributeProto, defs

from aot.frontends.onnx.microsoft import IN_ONNX_DOMAIN, MICROSOFT, SCHEMAS
from aot.frontends.onnx.stored import name_of
from aot.frontends.onnx.table import Node
from aot.ir.graph import Value
from aot.ir.types import DType

_TYPE_NAMES = {
    DType.F32: "float",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F64: "double",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.U8: "uint8",
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.BOOL: "bool",
}
# What ONNX Runtime's quantiser writes though the opset has it only later, and every engine reads.
_TOLERATED = {("QuantizeLinear", "axis"), ("DequantizeLinear", "axis")}
_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


def find_schema(domain: str, op_type: str, opset: int) -> defs.OpSchema | None:
    """The definition of an op at an opset version: ONNX's, or ours of ONNX Runtime's own; None
    where there is none."""
    if domain == MICROSOFT:
        return SCHEMAS.get(op_type)
    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return IN_ONNX_DOMAIN.get(op_type) if domain == "" else None


def is_known_domain(domain: str) -> bool:
    """Whether there are definitions of ops of a domain."""
    return domain == MICROSOFT or any(s.domain == domain for s in defs.get_all_schemas())


def check_node(node: Node, schema: defs.OpSchema) -> None:
    """Raises:
    CompileError: the node is not a valid use of its op.
    """
    count = len(node.inputs)
    if not schema.min_input <= count <= schema.max_input:
        wanted = (
            str(schema.min_input)
            if schema.min_input == schema.max_input
            else f"{schema.min_input} to {schema.max_input}"
        )
        raise node.error(f"has {count} operands, expected {wanted}")
    if len(node.outputs) > schema.max_output:
        raise node.error(f"has {len(node.outputs)} outputs, expected at most {schema.max_output}")
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in node.attributes:
            raise node.error(f"attribute {name!r} is missing")
    for name, found in node.attributes.items():
        declared = schema.attributes.get(name)
        if declared is None and (node.op_type, name) in _TOLERATED:
            continue
        if declared is None:
            raise node.error(f"has no attribute {name!r} in opset {node.opset}")
        kind = AttributeProto.AttributeType.Name(found.type)
        wanted = str(declared.type).rpartition(".")[2]
        if kind != wanted:
            raise node.error(f"attribute {name!r} is of type {kind}, expected {wanted}")
    _check_types(node, schema)


def _check_types(node: Node, schema: defs.OpSchema) -> None:
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    bound: dict[str, DType | int] = {}
    for number, value in enumerate(node.inputs):
        formal = schema.inputs[min(number, len(schema.inputs) - 1)]
        if value is None:
            if number in node.lists:
                continue
            if formal.option is not _OPTIONAL:
                raise node.error(f"operand {number} ({formal.name}) is missing")
            continue
        is_free = formal.option is _VARIADIC and not formal.is_homogeneous
        allowed = constraints.get(formal.type_str, [formal.type_str])
        _check_type(node, number, formal.name, value, allowed)
        own: DType | int = node.kinds.get(value, value.type.dtype)
        known = bound.setdefault(formal.type_str, own)
        if not is_free and known != own:
            raise node.error(
                f"operand {number} ({formal.name}) is {_shown(own)}, expected "
                f"{_shown(known)} as the operands before it"
            )


def _shown(kind: DType | int) -> str:
    return kind.value if isinstance(kind, DType) else name_of(kind)


def _check_type(node: Node, number: int, name: str, value: Value, allowed: Sequence[str]) -> None:
    dtype = value.type.dtype
    held = node.kinds.get(value)
    own = f"tensor({name_of(held) if held is not None else _TYPE_NAMES[dtype]})"
    if own not in allowed and f"optional({own})" not in allowed:
        ours = [d.value for d, text in _TYPE_NAMES.items() if f"tensor({text})" in allowed]
        expected = f"one of {', '.join(ours)}" if ours else "a sequence of tensors"
        found = dtype.value if held is None else name_of(held)
        raise node.error(f"operand {number} ({name}) is {found}, expected {expected}")
