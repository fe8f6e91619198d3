"""Cases of determinants, boxes and n-grams, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.onnx_models import Array, Case

_RNG = np.random.default_rng(31)


def _f(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return np.asarray(_RNG.uniform(low, high, shape), np.float32)


_PERMUTED = np.eye(4, dtype=np.float32)[[2, 0, 3, 1]]
_SINGULAR = np.array([[1, 2, 3], [2, 4, 6], [0, 1, 5]], np.float32)
DETERMINANTS = [
    Case("Det", [_f(2, 2)], is_symbolic=False),
    Case("Det", [_f(1, 1)], is_symbolic=False, name="one"),
    Case("Det", [_f(2, 3, 5, 5)], is_symbolic=False, name="batch"),
    Case("Det", [_PERMUTED], is_symbolic=False, name="zeros on the diagonal"),
    Case("Det", [_SINGULAR], is_symbolic=False, name="singular"),
    Case("Det", [np.zeros((2, 3, 3), np.float32)], is_symbolic=False, name="zeros"),
    Case("Det", [_f(9, 9)], opset=22, is_symbolic=False, name="nine"),
]

_IMAGES = _f(2, 3, 10, 12)
# one that is inverted, one that is outside, one that is larger than the image
_BOXES = np.array(
    [
        [1, 2, 7, 8],
        [0, 0, 11.5, 9.5],
        [6, 5, 3, 4],
        [20, 20, 25, 26],
        [-8, -6, 30, 22],
        [3.3, 2.2, 3.9, 2.4],
    ],
    np.float32,
)
_WHICH = np.array([0, 1, 1, 0, 0, 1], np.int64)


def _roi(name: str, constant: tuple[int, ...] = (), opset: int = 16, **attrs: Any) -> Case:
    given = {"output_height": 3, "output_width": 4, "sampling_ratio": 2, **attrs}
    inputs = [_IMAGES, _BOXES, _WHICH]
    # ONNX Runtime's and our own floor of a coordinate may differ in the last bit: no such here
    return Case("RoiAlign", inputs, given, opset, constant, name=name, is_symbolic=not constant)


BOXES = [
    _roi("half pixel"),
    _roi("edges", coordinate_transformation_mode="output_half_pixel"),
    _roi("opset 10", opset=10),
    _roi("largest", mode="max"),
    _roi("scaled", spatial_scale=0.5, sampling_ratio=3),
    _roi("adaptive", (1,), sampling_ratio=0),
    _roi("adaptive edges", (1,), opset=10, sampling_ratio=0, spatial_scale=0.75),
    _roi("adaptive largest", (1,), sampling_ratio=0, mode="max"),
]


def _suppression(
    name: str,
    shape: tuple[int, int, int],
    most: int | None,
    *thresholds: float | None,
    is_centered: bool = False,
    is_flat: bool = False,
    constant: tuple[int, ...] = (),
) -> Case:
    """Boxes of images of so many classes and boxes, of which many overlap; some have equal scores,
    some corners are in the other order, and one has no area."""
    images, classes, count = shape
    places, sizes = _f(images, count, 2, low=0, high=1), _f(images, count, 2, low=0.05, high=0.4)
    corners = [places, sizes] if is_centered else [places - sizes / 2, places + sizes / 2]
    boxes = np.concatenate(corners, -1)
    boxes[:, :1] = boxes[:, :1, [2, 3, 0, 1]] if not is_centered else boxes[:, :1]
    boxes[:, -1:, 2:] = 0 if is_centered else boxes[:, -1:, :2]
    scores = np.round(_f(images, classes, count, low=0, high=1), 1)
    operands: list[Array | None] = [boxes, scores]
    if most is not None:
        operands.append(np.array(most if is_flat else [most], np.int64))
    for value in thresholds:
        operands.append(None if value is None else np.array([value], np.float32))
    attrs = {"center_point_box": int(is_centered)}
    return Case("NonMaxSuppression", operands, attrs, 11, constant, name=name)


SUPPRESSION = [
    _suppression("corners", (2, 3, 12), 4, 0.3, 0.25, constant=(2, 3, 4)),
    _suppression("centred", (2, 3, 12), 4, 0.3, 0.25, is_centered=True, constant=(2, 3, 4)),
    _suppression("all computed", (1, 2, 70), 5, 0.5, 0.4),
    _suppression("one class", (1, 1, 90), 100, 0.6, 0.05, is_flat=True),
    _suppression("no least score", (1, 4, 9), 3, 0.5),
    _suppression("no overlap", (3, 1, 9), 9),
    _suppression("no most", (1, 1, 5), None),
    _suppression("none is wanted", (1, 2, 5), 0, 0.5),
    _suppression("none is good", (2, 2, 5), 3, 0.5, 2.0),
    _suppression("least only", (1, 2, 9), 3, None, 0.5),
]

_POOL = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 1, 2, 3]
_TOKENS = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8], [1, 2, 3, 5, 6, 7]], np.int64)


def _n_grams(name: str, tokens: Array = _TOKENS, **attrs: Any) -> Case:
    given = {
        "min_gram_length": 1,
        "max_gram_length": 3,
        "max_skip_count": 2,
        "mode": "TF",
        "ngram_counts": [0, 4, 10],  # four single tokens, three pairs, one of three
        "ngram_indexes": [0, 1, 2, 3, 4, 5, 6, 8],
        "pool_int64s": _POOL,
        **attrs,
    }
    return Case("TfIdfVectorizer", [tokens], given, is_symbolic=False, name=name)


_WEIGHTS = [0.5, 1.5, 2.0, 0.25, 3.0, 1.0, 0.75, 9.0]
_MOVED = {"ngram_indexes": [7, 1, 0, 3, 5, 4, 6, 2], "weights": _WEIGHTS}
N_GRAMS = [
    _n_grams("all"),
    _n_grams("pairs", min_gram_length=2, max_gram_length=2),
    _n_grams("no skips", max_skip_count=0),
    _n_grams("one column for several", ngram_indexes=[0, 1, 1, 3, 1, 5, 3, 8]),
    _n_grams("inverse", mode="IDF", **_MOVED),
    _n_grams("inverse without weights", mode="IDF"),
    _n_grams("weighted", mode="TFIDF", **_MOVED),
    _n_grams(
        "one column of several weights",
        mode="TFIDF",
        ngram_indexes=[0, 1, 1, 3, 1, 5, 3, 7],
        weights=_WEIGHTS,
    ),
    _n_grams("one row", _TOKENS[1]),
    _n_grams("i32", _TOKENS.astype(np.int32)),
    _n_grams("too short", _TOKENS[:, :1], min_gram_length=2),
]

OPTIONALS = [
    Case("OptionalHasElement", [_f(2, 3)], opset=18),
    Case("OptionalGetElement", [_f(2, 3)], opset=18),
]

CASES = [*OPTIONALS, *DETERMINANTS, *BOXES, *SUPPRESSION, *N_GRAMS]
