"""Cases for Attention as our op, against ONNX Runtime; those by definition are elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(23)


def _f(*shape: int) -> Array:
    return np.asarray(_RNG.uniform(-2, 2, shape), np.float32)


def _case(name: str, *inputs: Array | None, outputs: int = 1, **attrs: Any) -> Case:
    return Case("Attention", inputs, attrs, opset=23, outputs=outputs, is_symbolic=False, name=name)


_Q, _K, _V = _f(2, 4, 5, 8), _f(2, 4, 7, 8), _f(2, 4, 7, 6)
_KEEP = _RNG.integers(0, 2, (5, 7)).astype(bool)
_KEEP[:, 3] = True

CASES = [
    _case("plain", _Q, _K, _V),
    _case("scale", _Q, _K, _V, scale=0.3),
    _case("mask", _Q, _K, _V, _f(2, 1, 5, 7)),
    _case("choice", _Q, _K, _V, _KEEP),
    _case("causal", _Q, _K, _V, is_causal=1),
    _case("groups", _Q, _f(2, 2, 7, 8), _f(2, 2, 7, 8)),
    _case(
        "past",
        _Q,
        _f(2, 4, 5, 8),
        _f(2, 4, 5, 8),
        None,
        _f(2, 4, 3, 8),
        _f(2, 4, 3, 8),
        outputs=3,
        is_causal=1,
    ),
    _case(
        "rank 3",
        _f(2, 5, 24),
        _f(2, 7, 8),
        _f(2, 7, 8),
        _f(5, 7),
        q_num_heads=3,
        kv_num_heads=1,
    ),
]
