"""Schemas of ONNX Runtime's own ops, in the domain com.microsoft.

ONNX has no definition of them, so that nodes are checked against these, written from ONNX Runtime's
documentation (docs/ContribOperators.md). Owns no meaning: what the ops become is in `ops`, in
`*_microsoft.py`, `nbits.py` and `group_attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import defs

MICROSOFT = "com.microsoft"
_Formal = defs.OpSchema.FormalParameter
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic
_SINGLE = defs.OpSchema.FormalParameterOption.Single
_INT, _FLOAT, _STRING, _INTS, _FLOATS, _STRINGS = (
    defs.OpSchema.AttrType.INT,
    defs.OpSchema.AttrType.FLOAT,
    defs.OpSchema.AttrType.STRING,
    defs.OpSchema.AttrType.INTS,
    defs.OpSchema.AttrType.FLOATS,
    defs.OpSchema.AttrType.STRINGS,
)
_TYPES = {
    "B": ("uint8", "int8"),
    "A": ("uint8", "int8"),
    "Y": ("uint8", "int8", "float"),
    "Q": ("uint8", "int8", "uint16", "int16", "uint4", "int4"),
    "D": ("uint8", "int8", "uint16", "int16", "int32", "uint4", "int4"),
    "F": ("float", "float16"),
    "T": ("float", "float16", "bfloat16", "double"),
    "U": ("float", "float16", "bfloat16", "double"),
    "I": ("int32", "int64"),
    "int64": ("int64",),
    "P": ("uint8", "uint4", "int4"),
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
    domain: str = MICROSOFT,
) -> defs.OpSchema:
    """An op schema. `inputs` are `name:type` with a type of _TYPES, and ? if optional; the last may
    end in * (one or more of any type)."""
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
        domain,
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
_CONV = (
    ("auto_pad", _STRING),
    ("dilations", _INTS),
    ("group", _INT),
    ("kernel_shape", _INTS),
    ("pads", _INTS),
    ("strides", _INTS),
)
_FUSED_CONV = (*_CONV, ("activation", _STRING), ("activation_params", _FLOATS))
_FUSED_MATMUL = (
    ("alpha", _FLOAT),
    ("transA", _INT),
    ("transB", _INT),
    ("transBatchA", _INT),
    ("transBatchB", _INT),
)
_EPSILON = (("epsilon", _FLOAT),)
_HEADS = (
    ("num_heads", _INT),
    ("scale", _FLOAT),
    ("mask_filter_value", _FLOAT),
    ("unidirectional", _INT),
)
_SELF_ATTENTION = (
    *_HEADS,
    ("do_rotary", _INT),
    ("past_present_share_buffer", _INT),
    ("rotary_embedding_dim", _INT),
)

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
        _schema(
            "GatherBlockQuantized",
            "data:P indices:I scales:F zero_points:P?",
            tuple((name, _INT) for name in ("bits", "block_size", "gather_axis", "quantize_axis")),
        ),
        _schema("Gelu", "X:T"),
        _schema("BiasGelu", "A:T B:T"),
        _schema("FastGelu", "X:T bias:T?"),
        _schema("QuickGelu", "X:T", (("alpha", _FLOAT),)),
        _schema("BiasSplitGelu", "X:T bias:T"),
        _schema("BiasAdd", "X:T bias:T skip:T"),
        _schema("FusedMatMul", "A:T B:T", _FUSED_MATMUL),
        _schema("TransposeMatMul", "A:T B:T", _FUSED_MATMUL[:3]),
        _schema(
            "FusedGemm",
            "A:T B:T C:T?",
            (
                ("activation", _STRING),
                *((f"activation_{name}", _FLOAT) for name in ("alpha", "beta", "gamma")),
                ("alpha", _FLOAT),
                ("beta", _FLOAT),
                ("transA", _INT),
                ("transB", _INT),
            ),
        ),
        _schema("FusedConv", "X:T W:T B:T? Z:T?", _FUSED_CONV),
        _schema("NhwcFusedConv", "X:T W:T B:T? Z:T?", _FUSED_CONV),
        _schema("NhwcConv", "X:T W:T B:T?", _CONV),
        _schema(
            "SkipLayerNormalization",
            "input:T skip:T gamma:T beta:T? bias:T?",
            _EPSILON,
            outputs=4,
        ),
        _schema(
            "SkipSimplifiedLayerNormalization",
            "input:T skip:T gamma:T bias:T?",
            _EPSILON,
            outputs=4,
        ),
        _schema(
            "EmbedLayerNormalization",
            "input_ids:int32 segment_ids:int32? word_embedding:T position_embedding:T "
            "segment_embedding:T? gamma:T beta:T mask:int32? position_ids:int32?",
            (*_EPSILON, ("mask_index_type", _INT)),
            outputs=3,
        ),
        _schema(
            "Attention",
            "input:T weights:T bias:T? mask_index:int32? past:T? attention_bias:T? "
            "past_sequence_length:int32?",
            (*_SELF_ATTENTION, ("qkv_hidden_sizes", _INTS)),
            ("num_heads",),
            outputs=2,
        ),
        _schema(
            "QAttention",
            "input:A weight:B bias:F input_scale:F weight_scale:F mask_index:int32? "
            "input_zero_point:A? weight_zero_point:B? past:F?",
            _SELF_ATTENTION[:-1],
            ("num_heads",),
            outputs=2,
        ),
        _schema(
            "MultiHeadAttention",
            "query:T key:T? value:T? bias:T? key_padding_mask:int32? attention_bias:T? "
            "past_key:T? past_value:T? past_sequence_length:int32? cache_indirection:int32?",
            _HEADS,
            ("num_heads",),
            outputs=4,
        ),
        _schema(
            "GroupQueryAttention",
            "query:T key:T? value:T? past_key:U? past_value:U? seqlens_k:int32 "
            "total_sequence_length:int32 cos_cache:T? sin_cache:T? position_ids:int64? "
            "attention_bias:T? head_sink:T? k_scale:float? v_scale:float? q_norm_weight:T? "
            "k_norm_weight:T? query_seqlens:int32?",
            (
                *(
                    (name, _INT)
                    for name in (
                        "causal",
                        "do_rotary",
                        "kv_cache_bit_width",
                        "kv_num_heads",
                        "local_window_size",
                        "num_heads",
                        "qk_output",
                        "rotary_interleaved",
                        "sliding_window_cache",
                        "smooth_softmax",
                    )
                ),
                *(
                    (name, _FLOAT)
                    for name in (
                        "k_norm_epsilon",
                        "q_norm_epsilon",
                        "qk_norm_epsilon",
                        "scale",
                        "softcap",
                    )
                ),
                ("k_quant_type", _STRING),
                ("v_quant_type", _STRING),
            ),
            ("kv_num_heads", "num_heads"),
            outputs=4,
        ),
        _schema(
            "RotaryEmbedding",
            "input:T position_ids:int64 cos_cache:T sin_cache:T",
            (
                ("interleaved", _INT),
                ("is_packed_batching", _INT),
                ("num_heads", _INT),
                ("rotary_embedding_dim", _INT),
                ("scale", _FLOAT),
            ),
        ),
        _schema(
            "DynamicQuantizeLSTM",
            "X:float W:A R:B B:float? sequence_lens:int32? initial_h:float? initial_c:float? "
            "P:float? W_scale:float W_zero_point:A R_scale:float R_zero_point:B",
            (
                ("activation_alpha", _FLOATS),
                ("activation_beta", _FLOATS),
                ("activations", _STRINGS),
                ("clip", _FLOAT),
                ("direction", _STRING),
                ("hidden_size", _INT),
                ("input_forget", _INT),
            ),
            outputs=3,
        ),
    )
}
# What ONNX Runtime's optimiser writes as if ONNX had it.
IN_ONNX_DOMAIN = {
    "SimplifiedLayerNormalization": _schema(
        "SimplifiedLayerNormalization",
        "X:T scale:U",
        (("axis", _INT), *_EPSILON, ("stash_type", _INT)),
        outputs=2,
        domain="",
    )
}
