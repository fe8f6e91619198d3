"""ONNX Runtime's own ops for quantised models, domain com.microsoft: their schemas.

ONNX has no definition of them, so that nodes are checked against these, written from ONNX Runtime's
documentation (docs/ContribOperators.md). Owns no meaning: what the ops become is in
`ops/quantized_microsoft.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import defs

MICROSOFT = "com.microsoft"
_Formal = defs.OpSchema.FormalParameter
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic
_SINGLE = defs.OpSchema.FormalParameterOption.Single
_INT, _FLOAT, _STRING, _INTS = (
    defs.OpSchema.AttrType.INT,
    defs.OpSchema.AttrType.FLOAT,
    defs.OpSchema.AttrType.STRING,
    defs.OpSchema.AttrType.INTS,
)
_TYPES = {
    "B": ("uint8", "int8"),
    "A": ("uint8", "int8"),
    "Y": ("uint8", "int8", "float"),
    "Q": ("uint8", "int8", "uint16", "int16", "uint4", "int4"),
    "D": ("uint8", "int8", "uint16", "int16", "int32", "uint4", "int4"),
    "F": ("float", "float16"),
    "float": ("float",),
    "int32": ("int32",),
    "uint8": ("uint8",),
    "Z": ("uint8", "int32", "float16", "float"),
    "any": ("uint8", "int8", "float"),
}


def _schema(
    name: str,
    inputs: str,
    attributes: Sequence[tuple[str, defs.OpSchema.AttrType]] = (),
    required: Sequence[str] = (),
    outputs: int = 1,
) -> defs.OpSchema:
    """A schema. `inputs` are `name:type` with a type of _TYPES, and ? where one is optional; the
    last may end in * (one or more of any type)."""
    formals = []
    for item in inputs.split():
        formal, _, type = item.rstrip("?*").partition(":")
        option = {"?": _OPTIONAL, "*": _VARIADIC}.get(item[-1], _SINGLE)
        formals.append(
            _Formal(formal, type, "", param_option=option, is_homogeneous=option is not _VARIADIC)
        )
    used = sorted({f.type_str for f in formals} | {"any"})
    return defs.OpSchema(
        name,
        MICROSOFT,
        1,
        inputs=formals,
        outputs=[_Formal(f"y{n}", "any", "", param_option=_OPTIONAL) for n in range(outputs)],
        type_constraints=[(t, [f"tensor({dtype})" for dtype in _TYPES[t]], "") for t in used],
        attributes=[
            defs.OpSchema.Attribute(a, type, "", required=a in required) for a, type in attributes
        ],
    )


_POOL = (
    ("auto_pad", _STRING),
    ("ceil_mode", _INT),
    ("channels_last", _INT),
    ("count_include_pad", _INT),
    ("kernel_shape", _INTS),
    ("pads", _INTS),
    ("strides", _INTS),
)
_PAIR = (
    "a:B a_scale:float a_zero_point:B? b:B b_scale:float b_zero_point:B? "
    "c_scale:float c_zero_point:B?"
)
_ONE = "x:B x_scale:float x_zero_point:B? y_scale:float y_zero_point:B?"
_NBITS = ("K", "N", "bits", "block_size")
_BLOCKS = (("axis", _INT), ("block_size", _INT))

SCHEMAS = {
    schema.name: schema
    for schema in (
        _schema("QuantizeLinear", "x:F y_scale:F y_zero_point:Q?", _BLOCKS),
        _schema("DequantizeLinear", "x:D x_scale:F x_zero_point:D?", _BLOCKS),
        _schema(
            "QGemm",
            "a:A a_scale:float a_zero_point:A b:B b_scale:float b_zero_point:B c:int32? "
            "y_scale:float? y_zero_point:Y?",
            (("alpha", _FLOAT), ("transA", _INT), ("transB", _INT)),
        ),
        _schema("QLinearAdd", _PAIR),
        _schema("QLinearMul", _PAIR),
        _schema(
            "QLinearConcat",
            "y_scale:float y_zero_point:B inputs:any*",
            (("axis", _INT),),
            ("axis",),
        ),
        _schema(
            "QLinearGlobalAveragePool",
            "x:B x_scale:float x_zero_point:B y_scale:float y_zero_point:B",
            (("channels_last", _INT),),
        ),
        _schema("QLinearAveragePool", _ONE, _POOL, ("kernel_shape",)),
        _schema(
            "QLinearSoftmax",
            "x:B x_scale:float x_zero_point:B? y_scale:float y_zero_point:B",
            (("axis", _INT), ("opset", _INT)),
            ("opset",),
        ),
        _schema("QLinearSigmoid", _ONE),
        _schema("QLinearLeakyRelu", _ONE, (("alpha", _FLOAT),)),
        _schema("DynamicQuantizeMatMul", "a:float b:B b_scale:float b_zero_point:B? bias:float?"),
        _schema(
            "MatMulIntegerToFloat",
            "a:A b:B a_scale:F b_scale:F a_zero_point:A? b_zero_point:B? bias:F?",
        ),
        _schema(
            "MatMulNBits",
            "A:F B:uint8 scales:F zero_points:Z? g_idx:int32? bias:F?",
            tuple((name, _INT) for name in (*_NBITS, "accuracy_level", "weight_prepacked")),
            _NBITS[:2],
        ),
    )
}
