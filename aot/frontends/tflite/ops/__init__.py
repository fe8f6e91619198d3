"""The entries of the table, by family. Importing this package fills the table."""

from aot.frontends.tflite.ops import (
    convolution,
    detection,
    elementwise,
    indexing,
    landmarks,
    matrix,
    movement,
    pooling,
    recurrent,
    reduction,
    resize,
    signal,
)

__all__ = [
    "convolution",
    "detection",
    "elementwise",
    "indexing",
    "landmarks",
    "matrix",
    "movement",
    "pooling",
    "recurrent",
    "reduction",
    "resize",
    "signal",
]
