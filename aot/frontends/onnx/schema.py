"""Checks nodes against ONNX's schemas: operand counts, element types, required attributes.

What passes is a valid use of the op, so that whatever an entry then refuses is our limit and not
the user's mistake.
"""

from __future__ import annotations

import functools

from onnx import AttributeProto, defs

from aot.base.records import dataclass
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


@dataclass(frozen=True)
class _Formal:
    """A formal parameter of ONNX's schema.

    Attributes:
        kind: the type's name or parameter; operands that share one are of one type.
        allowed: ONNX's names of the types that it may have.
        is_free: whether each operand that it stands for may be of another type.
    """

    name: str
    kind: str
    allowed: frozenset[str]
    is_optional: bool
    is_free: bool


class _Rules:
    """A schema's rules as Python values, read once, because ONNX's object converts a field at each
    access.
    """

    def __init__(self, schema: defs.OpSchema) -> None:
        constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        self.input_counts = (schema.min_input, schema.max_input)
        self.most_outputs = schema.max_output
        attributes = schema.attributes
        self.required = [name for name, a in attributes.items() if a.required]
        self.attributes = {name: str(a.type).rpartition(".")[2] for name, a in attributes.items()}
        self.formals = [
            _Formal(
                f.name,
                f.type_str,
                frozenset(constraints.get(f.type_str, [f.type_str])),
                f.option is _OPTIONAL,
                f.option is _VARIADIC and not f.is_homogeneous,
            )
            for f in schema.inputs
        ]


@functools.cache
def find_schema(domain: str, op_type: str, opset: int) -> defs.OpSchema | None:
    """The schema of an op at an opset version: ONNX's, or our own for ONNX Runtime's ops; None if
    there is none."""
    if domain == MICROSOFT:
        return SCHEMAS.get(op_type)
    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return IN_ONNX_DOMAIN.get(op_type) if domain == "" else None


@functools.cache
def _rules(schema: defs.OpSchema) -> _Rules:
    return _Rules(schema)


def is_known_domain(domain: str) -> bool:
    """Whether there are schemas of ops in a domain."""
    return domain == MICROSOFT or any(s.domain == domain for s in defs.get_all_schemas())


def check_node(node: Node, schema: defs.OpSchema) -> None:
    """Checks a node against its op's schema: operand counts, types and attributes.

    Raises:
        CompileError: the node is not a valid use of its op.
    """
    rules = _rules(schema)
    count, (least, most) = len(node.inputs), rules.input_counts
    if not least <= count <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise node.error(f"has {count} operands, expected {wanted}")
    if len(node.outputs) > rules.most_outputs:
        raise node.error(f"has {len(node.outputs)} outputs, expected at most {rules.most_outputs}")
    for name in rules.required:
        if name not in node.attributes:
            raise node.error(f"attribute {name!r} is missing")
    for name, found in node.attributes.items():
        declared = rules.attributes.get(name)
        if declared is None and (node.op_type, name) in _TOLERATED:
            continue
        if declared is None:
            raise node.error(f"has no attribute {name!r} in opset {node.opset}")
        kind = AttributeProto.AttributeType.Name(found.type)
        if kind != declared:
            raise node.error(f"attribute {name!r} is of type {kind}, expected {declared}")
    _check_types(node, rules)


def _check_types(node: Node, rules: _Rules) -> None:
    bound: dict[str, DType | int] = {}
    for number, value in enumerate(node.inputs):
        formal = rules.formals[min(number, len(rules.formals) - 1)]
        if value is None:
            if number not in node.lists and not formal.is_optional:
                raise node.error(f"operand {number} ({formal.name}) is missing")
            continue
        _check_type(node, number, formal, value)
        own: DType | int = node.kinds.get(value, value.type.dtype)
        known = bound.setdefault(formal.kind, own)
        if not formal.is_free and known != own:
            raise node.error(
                f"operand {number} ({formal.name}) is {_shown(own)}, expected "
                f"{_shown(known)} as the operands before it"
            )


def _shown(kind: DType | int) -> str:
    return kind.value if isinstance(kind, DType) else name_of(kind)


def _check_type(node: Node, number: int, formal: _Formal, value: Value) -> None:
    dtype, allowed = value.type.dtype, formal.allowed
    held = node.kinds.get(value)
    own = f"tensor({name_of(held) if held is not None else _TYPE_NAMES[dtype]})"
    if own not in allowed and f"optional({own})" not in allowed:
        ours = [d.value for d, text in _TYPE_NAMES.items() if f"tensor({text})" in allowed]
        other = "strings" if "tensor(string)" in allowed else "a sequence of tensors"
        expected = f"one of {', '.join(ours)}" if ours else other
        found = dtype.value if held is None else name_of(held)
        raise node.error(f"operand {number} ({formal.name}) is {found}, expected {expected}")
