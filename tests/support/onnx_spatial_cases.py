"""Cases of resizing, transposed convolutions, grids and windows, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(29)


def _f(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return np.asarray(_RNG.uniform(low, high, shape), np.float32)


def _i(*values: int) -> Array:
    return np.array(values, np.int64)


def _scales(*values: float) -> Array:
    return np.array(values, np.float32)


def _resize(
    x: Array,
    scales: Array | None,
    sizes: Array | None,
    opset: int = 13,
    name: str = "",
    roi: Array | None = None,
    is_symbolic: bool = True,
    **attrs: Any,
) -> Case:
    inputs = [x, roi, scales, sizes] if sizes is not None else [x, roi, scales]
    constant = [n for n in range(1, len(inputs)) if inputs[n] is not None]
    return Case(
        "Resize", inputs, attrs, opset=opset, constant=constant, name=name, is_symbolic=is_symbolic
    )


_UP, _ODD, _DOWN = _scales(1, 1, 2, 3), _scales(1, 1, 1.5, 2.25), _scales(1, 1, 0.6, 0.5)
RESIZES = [
    Case("Upsample", [_f(1, 2, 3, 4)], {"scales": [1.0, 1.0, 2.0, 3.0]}, opset=7),
    Case("Upsample", [_f(1, 2, 3, 4), _UP], {"mode": "linear"}, constant=[1], opset=9),
    Case("Upsample", [_f(1, 2, 3, 4), _UP], constant=[1], opset=9, name="nearest"),
    Case("Resize", [_f(1, 2, 3, 4), _UP], constant=[1], opset=10),
    Case(
        "Resize",
        [_f(1, 2, 3, 4), _ODD],
        {"mode": "linear"},
        constant=[1],
        opset=10,
        is_symbolic=False,
        name="linear",
    ),
    *(
        _resize(
            _f(1, 2, 5, 6),
            scales,
            None,
            mode="nearest",
            nearest_mode=rounding,
            coordinate_transformation_mode=coordinates,
            name=f"{what} {rounding} {coordinates}",
        )
        for what, scales in (("odd", _ODD), ("down", _DOWN), ("decimal", _scales(1, 1, 0.7, 1.3)))
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for coordinates in ("half_pixel", "asymmetric", "pytorch_half_pixel")
    ),
    # with extents that are no whole number ONNX and ONNX Runtime differ in where corners are
    *(
        _resize(
            _f(1, 2, 5, 6),
            None,
            _i(1, 2, *sizes),
            mode=mode,
            name=f"corners {mode} {sizes}",
            coordinate_transformation_mode="align_corners",
        )
        for mode in ("nearest", "linear", "cubic")
        for sizes in ((3, 11), (1, 6))
    ),
    *(
        _resize(
            _f(1, 2, 5, 6),
            scales,
            None,
            mode=mode,
            is_symbolic=what == "up",
            coordinate_transformation_mode=coordinates,
            name=f"{what} {mode} {coordinates}",
        )
        for what, scales in (("up", _UP), ("odd", _ODD), ("down", _DOWN))
        for mode in ("linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric", "pytorch_half_pixel")
    ),
    *(
        _resize(
            _f(1, 2, 5, 6),
            _UP,
            None,
            mode=mode,
            is_symbolic=True,
            name=f"up {mode} corners",
            coordinate_transformation_mode="align_corners",
        )
        for mode in ("linear", "nearest")
    ),
    _resize(_f(1, 2, 3, 4), _UP, None, mode="nearest", is_symbolic=True, name="repeat"),
    _resize(_f(1, 2, 5, 6), None, _i(1, 2, 9, 4), mode="linear", name="sizes"),
    _resize(
        _f(1, 2, 5, 6),
        np.zeros(0, np.float32),
        _i(1, 2, 9, 4),
        mode="nearest",
        opset=11,
        name="sizes",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        roi=np.zeros(0, np.float32),
    ),
    _resize(
        _f(1, 2, 5, 6),
        _DOWN,
        None,
        mode="cubic",
        exclude_outside=1,
        cubic_coeff_a=-0.5,
        name="exclude outside",
    ),
    _resize(
        _f(1, 1, 6, 7),
        None,
        _i(1, 1, 4, 5),
        mode="linear",
        name="crop",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
        roi=np.array([0, 0, 0.4, -0.2, 1, 1, 1.2, 0.7], np.float32),
    ),
    _resize(_f(1, 2, 8, 9), _DOWN, None, opset=18, mode="linear", antialias=1, name="antialias"),
    _resize(
        _f(1, 2, 5, 6), _scales(1.5, 0.5), None, opset=18, mode="linear", axes=[2, 3], name="axes"
    ),
    _resize(
        _f(1, 2, 4, 8),
        None,
        _i(7, 9),
        opset=18,
        mode="nearest",
        axes=[2, 3],
        keep_aspect_ratio_policy="not_larger",
        name="aspect",
    ),
]


def _transposed(
    x: Array,
    w: Array,
    name: str,
    *,
    bias: bool = False,
    opset: int = 13,
    is_symbolic: bool = True,
    **attrs: Any,
) -> Case:
    inputs = [x, w, _f(w.shape[1] * attrs.get("group", 1))] if bias else [x, w]
    return Case(
        "ConvTranspose",
        inputs,
        attrs,
        opset=opset,
        constant=[1],
        name=name,
        is_symbolic=is_symbolic,
    )


TRANSPOSED = [
    _transposed(_f(1, 3, 5, 4), _f(3, 2, 3, 3), "plain"),
    _transposed(_f(2, 4, 5, 4), _f(4, 3, 2, 2), "stride is kernel", strides=[2, 2], bias=True),
    _transposed(
        _f(1, 3, 5, 4), _f(3, 2, 4, 3), "pads", strides=[2, 3], pads=[1, 0, 1, 2], bias=True
    ),
    _transposed(_f(1, 4, 5, 4), _f(4, 3, 3, 3), "group", group=2, strides=[2, 1]),
    _transposed(_f(1, 2, 4, 5), _f(2, 3, 2, 3), "dilations", dilations=[3, 2], strides=[2, 3]),
    _transposed(
        _f(1, 3, 5, 4),
        _f(3, 2, 3, 3),
        "output padding",
        strides=[3, 2],
        output_padding=[1, 1],
        opset=11,
    ),
    _transposed(
        _f(1, 3, 5, 4),
        _f(3, 2, 3, 3),
        "output shape",
        strides=[3, 2],
        output_shape=[14, 9],
        is_symbolic=False,
    ),
    # an odd padding is split otherwise by ONNX than by ONNX Runtime
    *(
        _transposed(_f(1, 2, 5, 4), _f(2, 3, 4, 3), mode, strides=[2, 3], auto_pad=mode)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    _transposed(_f(2, 3, 7), _f(3, 2, 4), "1d", strides=[2], pads=[1, 1]),
    _transposed(
        _f(2, 3, 5, 4),
        _f(3, 16, 3, 3),
        "phases apart",
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
        bias=True,
    ),
    _transposed(
        _f(1, 3, 5, 4), _f(3, 18, 3, 4), "phases of lines apart", strides=[2, 2], pads=[0, 1, 1, 1]
    ),
    _transposed(_f(1, 3, 5), _f(3, 20, 7), "phases of a signal", strides=[3], pads=[2, 1]),
    _transposed(_f(1, 2, 2, 3, 4), _f(2, 3, 2, 3, 2), "3d", strides=[1, 2, 2]),
]

_UNPOOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
WINDOWS = [
    Case(
        "Col2Im", [_f(1, 12, 12), _i(5, 5), _i(2, 3)], opset=18, constant=[1, 2], is_symbolic=False
    ),
    Case(
        "Col2Im",
        [_f(2, 8, 9), _i(6, 6), _i(2, 2)],
        {"strides": [2, 2]},
        opset=18,
        constant=[1, 2],
        is_symbolic=False,
        name="strides",
    ),
    Case(
        "MaxPool",
        [_f(1, 2, 9, 7)],
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]},
        outputs=2,
        name="indices",
    ),
    Case(
        "MaxPool",
        [_f(1, 2, 6, 7)],
        {"kernel_shape": [2, 2], "storage_order": 1},
        outputs=2,
        name="indices, column major",
    ),
    Case(
        "MaxUnpool",
        [_f(1, 2, 2, 2), np.array([[[[0, 3], [9, 14]], [[17, 19], [25, 31]]]])],
        _UNPOOL,
        is_symbolic=False,
    ),
    Case("LRN", [_f(2, 7, 3, 4)], {"size": 3}),
    Case(
        "LRN",
        [_f(1, 5, 4, 3)],
        {"size": 5, "alpha": 0.5, "beta": 0.6, "bias": 2.0},
        name="attributes",
    ),
    Case("LpNormalization", [_f(3, 5)], {"axis": 1}),
    Case("LpNormalization", [_f(3, 5, 2)], {"axis": 1, "p": 1}, name="1"),
    Case("GlobalLpPool", [_f(2, 3, 4, 5)]),
    Case("GlobalLpPool", [_f(2, 3, 4)], {"p": 3}, name="3"),
    Case(
        "LpPool",
        [_f(1, 2, 7, 6)],
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
        opset=11,
    ),
    Case(
        "LpPool",
        [_f(1, 2, 8, 7)],
        {"kernel_shape": [3, 2], "strides": [2, 2], "p": 3, "ceil_mode": 1},
        opset=18,
        name="ceil",
    ),
    *(
        Case(
            "GridSample",
            [_f(2, 3, 5, 7), _f(2, 4, 6, 2, low=-1.5, high=1.5)],
            {"mode": mode, "padding_mode": padding, "align_corners": align},
            opset=16,
            name=f"{mode} {padding} {align}",
            is_symbolic=False,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    Case(
        "GridSample",
        [_f(1, 2, 4, 3, 5), _f(1, 2, 3, 4, 3, low=-1.2, high=1.2)],
        {"mode": "linear"},
        opset=20,
        is_symbolic=False,
        name="3d",
    ),
]

CASES = [*RESIZES, *TRANSPOSED, *WINDOWS]
