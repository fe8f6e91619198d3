"""The entries of the table, by family. Importing this package fills the table."""

from aot.frontends.torch.ops import (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    matrix,
    movement,
    normalization,
    quantized,
    recurrent,
    reduction,
    resize,
)

__all__ = [
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "matrix",
    "movement",
    "normalization",
    "quantized",
    "recurrent",
    "reduction",
    "resize",
]
