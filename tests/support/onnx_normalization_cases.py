"""Cases for normalisations over channels and groups, against ONNX Runtime."""

from __future__ import annotations

import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(17)


def _f(*shape: int) -> Array:
    # far from 0, so that a variance by E[x^2] - E[x]^2 would lose digits
    return np.asarray(_RNG.uniform(3, 7, shape), np.float32)


CASES = [
    Case("InstanceNormalization", [_f(2, 3, 4, 5), _f(3), _f(3)], constant=[1, 2]),
    Case("InstanceNormalization", [_f(2, 3, 7), _f(3), _f(3)], {"epsilon": 0.1}, name="1d"),
    Case(
        "GroupNormalization",
        [_f(2, 6, 4, 5), _f(2), _f(2)],
        {"num_groups": 2},
        opset=18,
        constant=[1, 2],
        is_symbolic=False,
    ),
    Case(
        "GroupNormalization",
        [_f(2, 6, 4, 5), _f(6), _f(6)],
        {"num_groups": 2},
        opset=21,
        constant=[1, 2],
        is_symbolic=False,
    ),
    Case(
        "GroupNormalization",
        [_f(2, 6), _f(6), _f(6)],
        {"num_groups": 3, "epsilon": 0.1},
        opset=21,
        is_symbolic=False,
        name="no spatial dims",
    ),
    Case(
        "BatchNormalization",
        [_f(2, 3, 4), *(_f(3) for _ in range(4))],
        opset=7,
        constant=[1, 2, 3, 4],
    ),
    Case(
        "BatchNormalization",
        [_f(2, 3, 4), *(_f(3) for _ in range(4))],
        {"epsilon": 0.1},
        opset=15,
        name="epsilon",
    ),
    Case(
        "BatchNormalization",
        [_f(2, 3), *(_f(3) for _ in range(4))],
        {"momentum": 0.5},
        opset=9,
        name="no spatial dims",
    ),
]
