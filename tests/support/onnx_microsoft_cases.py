"""Cases for ONNX Runtime's own ops of decoders and of its optimiser, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(29)


def _f(*shape: int) -> Array:
    return np.asarray(_RNG.uniform(-2, 2, shape), np.float32)


def _i(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


def _case(
    op: str, name: str, *inputs: Array | None, outputs: int = 1, constant: Any = (), **attrs: Any
) -> Case:
    return Case(
        op,
        inputs,
        attrs,
        outputs=outputs,
        constant=constant,
        is_symbolic=False,
        name=name,
        domain="com.microsoft",
    )


_X = _f(2, 5, 12)
_MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)

ACTIVATIONS = [
    _case("Gelu", "", _X),
    _case("BiasGelu", "", _X, _f(12)),
    _case("FastGelu", "", _X),
    _case("FastGelu", "bias", _X, _f(12)),
    _case("QuickGelu", "", _X),
    _case("QuickGelu", "alpha", _X, alpha=0.7),
]
PRODUCTS = [
    _case("FusedMatMul", "", _f(3, 4, 5), _f(3, 5, 6), alpha=0.25),
    _case("FusedMatMul", "a turned vector", _f(5), _f(5, 6), transA=1),
    _case("FusedMatMul", "both turned", _f(3, 5, 4), _f(3, 6, 5), transA=1, transB=1),
    _case("FusedMatMul", "batch of a", _f(4, 3, 5), _f(3, 5, 6), transBatchA=1),
    _case("FusedMatMul", "batch of b", _f(3, 4, 5), _f(5, 3, 6), transBatchB=1),
    _case(
        "FusedMatMul",
        "all",
        _f(4, 2, 3, 5),
        _f(5, 2, 3, 6),
        transBatchA=1,
        transBatchB=1,
        transA=0,
        alpha=2.0,
    ),
    _case("FusedGemm", "relu", _f(3, 4), _f(4, 5), _f(5), activation="Relu"),
    _case(
        "FusedGemm",
        "leaky",
        _f(3, 4),
        _f(5, 4),
        _f(3, 5),
        activation="LeakyRelu",
        activation_alpha=0.3,
        transB=1,
        alpha=0.5,
        beta=2.0,
    ),
    *(
        _case(
            "FusedConv",
            name,
            _f(1, 3, 7, 6),
            _f(4, 3, 3, 3),
            _f(4),
            activation=name,
            **({"activation_params": parameters} if parameters else {}),
            pads=[1, 1, 1, 1],
        )
        for name, parameters in (
            ("Relu", []),
            ("Tanh", []),
            ("Sigmoid", []),
            ("LeakyRelu", [0.1]),
            ("Clip", [-1.0, 2.5]),
            ("HardSigmoid", [0.3, 0.4]),
        )
    ),
    _case(
        "FusedConv",
        "sum",
        _f(1, 4, 7, 6),
        _f(4, 2, 3, 3),
        _f(4),
        _f(1, 4, 3, 3),
        activation="Relu",
        group=2,
        strides=[2, 2],
        auto_pad="NOTSET",
        pads=[0, 0, 0, 1],
    ),
]
NORMS = [
    _case("SkipLayerNormalization", "", _X, _f(2, 5, 12), _f(12), _f(12)),
    _case(
        "SkipLayerNormalization",
        "bias",
        _X,
        _f(2, 5, 12),
        _f(12),
        _f(12),
        _f(12),
        epsilon=1e-3,
    ),
    _case("SkipLayerNormalization", "no beta", _X, _f(1, 5, 12), _f(12)),
    _case("SkipSimplifiedLayerNormalization", "", _X, _f(2, 5, 12), _f(12), epsilon=1e-5),
    _case("SkipSimplifiedLayerNormalization", "bias", _X, _f(5, 12), _f(12), _f(12)),
    Case(
        "SimplifiedLayerNormalization",
        (_X, _f(12)),
        {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
        is_symbolic=False,
    ),
    _case(
        "EmbedLayerNormalization",
        "",
        _RNG.integers(0, 9, (2, 5)).astype(np.int32),
        _RNG.integers(0, 2, (2, 5)).astype(np.int32),
        _f(9, 12),
        _f(7, 12),
        _f(2, 12),
        _f(12),
        _f(12),
        _MASK,
        outputs=3,
    ),
    _case(
        "EmbedLayerNormalization",
        "no segments",
        _RNG.integers(0, 9, (2, 5)).astype(np.int32),
        None,
        _f(9, 12),
        _f(7, 12),
        None,
        _f(12),
        _f(12),
        None,
        np.array([[4, 3, 2, 1, 0]], np.int32),
        outputs=2,
    ),
]

# attention of 3 heads with depth 4

_HEADS = {"num_heads": 3}
_SELF = (_X, _f(12, 36), _f(36))
ATTENTIONS = [
    _case("Attention", "", *_SELF, **_HEADS),
    _case("Attention", "causal", *_SELF, unidirectional=1, **_HEADS),
    _case("Attention", "mask", *_SELF, _MASK, **_HEADS),
    _case("Attention", "ends", *_SELF, _i(3, 5), **_HEADS),
    _case("Attention", "ends and starts", *_SELF, _i(3, 5, 0, 2), **_HEADS),
    _case("Attention", "mask of pairs", *_SELF, np.tril(np.ones((2, 5, 5), np.int32)), **_HEADS),
    _case("Attention", "bias", *_SELF, None, None, _f(1, 3, 5, 5), **_HEADS),
    _case("Attention", "filter", *_SELF, _MASK, mask_filter_value=-5.0, **_HEADS),
    _case("Attention", "past", *_SELF, None, _f(2, 2, 3, 4, 4), outputs=2, **_HEADS),
    _case(
        "Attention",
        "causal past",
        *_SELF,
        np.ones((2, 9), np.int32),
        _f(2, 2, 3, 4, 4),
        outputs=2,
        unidirectional=1,
        **_HEADS,
    ),
    _case("Attention", "widths", _X, _f(12, 30), _f(30), qkv_hidden_sizes=[12, 12, 6], **_HEADS),
    _case("Attention", "scale", *_SELF, scale=0.3, **_HEADS),
    _case(
        "QAttention",
        "",
        _RNG.integers(0, 256, (2, 5, 12)).astype(np.uint8),
        # sums of two larger products saturate where ONNX Runtime has 16 bits for them
        _RNG.integers(-60, 60, (12, 36)).astype(np.int8),
        _f(36),
        np.array(0.02, np.float32),
        np.array(0.01, np.float32),
        _i(3, 5),
        np.array(110, np.uint8),
        np.array(0, np.int8),
        constant=(1, 2, 3, 4, 6, 7),
        **_HEADS,
    ),
]
_Q, _KEYS = _f(2, 5, 12), _f(2, 7, 12)
MULTI_HEADS = [
    _case("MultiHeadAttention", "", _Q, _KEYS, _f(2, 7, 12), **_HEADS),
    _case("MultiHeadAttention", "bias", _Q, _KEYS, _f(2, 7, 12), _f(36), **_HEADS),
    _case("MultiHeadAttention", "wide values", _Q, _KEYS, _f(2, 7, 15), _f(39), **_HEADS),
    _case(
        "MultiHeadAttention",
        "mask",
        _Q,
        _KEYS,
        _f(2, 7, 12),
        None,
        np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32),
        **_HEADS,
    ),
    _case(
        "MultiHeadAttention",
        "added",
        _Q,
        _KEYS,
        _f(2, 7, 12),
        None,
        None,
        _f(1, 3, 5, 7),
        scale=0.4,
        **_HEADS,
    ),
    _case(
        "MultiHeadAttention",
        "mask and bias",
        _Q,
        _f(2, 7, 12),
        _f(2, 7, 12),
        None,
        np.array([[1, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 0]], np.int32),
        _f(2, 3, 5, 7),
        **_HEADS,
    ),
    _case("MultiHeadAttention", "causal", _Q, _Q, _f(2, 5, 12), unidirectional=1, **_HEADS),
    _case(
        "MultiHeadAttention",
        "past",
        _Q,
        _Q,
        _f(2, 5, 12),
        None,
        None,
        None,
        _f(2, 3, 4, 4),
        _f(2, 3, 4, 4),
        outputs=3,
        unidirectional=1,
        **_HEADS,
    ),
    _case("MultiHeadAttention", "heads apart", _Q, _f(2, 3, 7, 4), _f(2, 3, 7, 4), **_HEADS),
]

# decoders: 4 heads of depth 16 over 2 groups

_COS, _SIN = _f(16, 8), _f(16, 8)
_GROUPS = {"num_heads": 4, "kv_num_heads": 2}


def _group(
    name: str,
    batch: int,
    fresh: int,
    past: int,
    *,
    room: int = 0,
    lengths: Array | None = None,
    is_packed: bool = False,
    bias: Array | None = None,
    sink: Array | None = None,
    has_past: bool = True,
    **attrs: Any,
) -> Case:
    """`room` is what the past has, if more than is taken of it."""
    total = past + fresh
    before = _f(batch, 2, room or past, 16)
    qkv = (
        (_f(batch, fresh, 128), None, None)
        if is_packed
        else (_f(batch, fresh, 64), _f(batch, fresh, 32), _f(batch, fresh, 32))
    )
    turns = attrs.get("do_rotary", 0)
    inputs = (
        *qkv,
        *((before, _f(*before.shape)) if has_past else (None, None)),
        np.full(batch, total - 1, np.int32) if lengths is None else lengths,
        np.array(total, np.int32),
        _COS if turns else None,
        _SIN if turns else None,
        None,
        bias,
        sink,
    )
    while inputs[-1] is None:
        inputs = inputs[:-1]
    return _case(
        "GroupQueryAttention",
        name,
        *inputs,
        outputs=3,
        constant=(6,),
        **_GROUPS,
        **attrs,
    )


GROUPS = [
    _group("first", 1, 5, 0),
    _group("without a past", 2, 5, 0, has_past=False),
    _group("first rotary", 2, 5, 0, do_rotary=1),
    _group("next", 1, 1, 6, do_rotary=1),
    _group("several", 1, 3, 6, do_rotary=1),
    _group("batch", 2, 1, 6, do_rotary=1),
    _group("ragged batch", 2, 1, 6, lengths=_i(3, 6), do_rotary=1, room=7),
    _group("interleaved", 1, 2, 6, do_rotary=1, rotary_interleaved=1),
    _group("packed", 1, 2, 6, is_packed=True, do_rotary=1),
    _group("window", 1, 3, 6, local_window_size=4),
    _group("scale", 1, 3, 6, scale=0.2),
    _group("cap", 1, 3, 6, softcap=2.0),
    _group("cap and window", 2, 3, 0, softcap=2.0, local_window_size=2),
    _group("room", 1, 1, 6, room=12, do_rotary=1),
    _group("bias", 1, 3, 6, bias=_f(1, 4, 3, 9)),
    _group("sink", 1, 3, 6, sink=_f(4)),
    _group("smooth", 1, 3, 6, smooth_softmax=1),
]
_POSITIONS = np.array([[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]], np.int64)
ROTARY = [
    _case("RotaryEmbedding", "offset", _f(2, 5, 48), np.array([3], np.int64), _COS, _SIN),
    _case("RotaryEmbedding", "positions", _f(2, 5, 48), _POSITIONS, _COS, _SIN),
    _case("RotaryEmbedding", "apart", _f(2, 3, 5, 16), _POSITIONS, _COS, _SIN, interleaved=1),
    _case(
        "RotaryEmbedding",
        "part",
        _f(2, 5, 60),
        _POSITIONS,
        _COS,
        _SIN,
        num_heads=3,
        rotary_embedding_dim=16,
    ),
]


def _table(name: str, dtype: Any, shape: tuple[int, ...], *, zeros: bool, **attrs: Any) -> Case:
    """A table of bytes: rows of `shape`, blocks of 16."""
    bits = attrs.get("bits", 4)
    width = shape[-1] * 8 // bits
    blocks = -(-width // 16)
    inputs: list[Array | None] = [
        _RNG.integers(0, 256, shape).astype(dtype),
        _RNG.integers(0, shape[0], (2, 3)),
        _f(*shape[:-1], blocks),
    ]
    if zeros:
        inputs.append(_RNG.integers(0, 256, (*shape[:-1], -(-blocks * bits // 8))).astype(dtype))
    return _case(
        "GatherBlockQuantized",
        name,
        *inputs,
        constant=(0, 2, 3),
        gather_axis=0,
        quantize_axis=len(shape) - 1,
        block_size=16,
        **attrs,
    )


def _narrow_table(name: str, dtype: Any, *, zeros: bool) -> Case:
    """A table whose elements are of 4 bits by their type: rows of 40, blocks of 16."""
    info = ml_dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max) + 1
    inputs: list[Array | None] = [
        _RNG.integers(low, high, (7, 40)).astype(dtype),
        _RNG.integers(0, 7, (2, 3)),
        _f(7, 3),
    ]
    if zeros:
        inputs.append(_RNG.integers(low, high, (7, 3)).astype(dtype))
    attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16}
    return _case("GatherBlockQuantized", name, *inputs, constant=(0, 2, 3), **attrs)


TABLES = [
    *(
        _narrow_table(f"{np.dtype(dtype)}{', zeros' * zeros}", dtype, zeros=zeros)
        for dtype in (ml_dtypes.int4, ml_dtypes.uint4)
        for zeros in (False, True)
    ),
    _table("4 bits", np.uint8, (7, 24), zeros=False, bits=4),
    _table("4 bits, zeros", np.uint8, (7, 24), zeros=True, bits=4),
    _table("8 bits", np.uint8, (7, 32), zeros=False, bits=8),
    _table("8 bits, zeros", np.uint8, (7, 32), zeros=True, bits=8),
]

CASES = [
    *ACTIVATIONS,
    *PRODUCTS,
    *NORMS,
    *ATTENTIONS,
    *MULTI_HEADS,
    *GROUPS,
    *ROTARY,
    *TABLES,
]
