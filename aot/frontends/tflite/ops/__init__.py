"""The entries of the table, by family. Importing this package fills the table."""

from aot.frontends.tflite.ops import (
    convolution,
    elementwise,
    indexing,
    matrix,
    movement,
    pooling,
    reduction,
    resize,
)

__all__ = [
    "convolution",
    "elementwise",
    "indexing",
    "matrix",
    "movement",
    "pooling",
    "reduction",
    "resize",
]
