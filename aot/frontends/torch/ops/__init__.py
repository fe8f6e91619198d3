"""The entries of the table, by family. Importing this package fills the table."""

from aot.frontends.torch.ops import (
    attention,
    complex_numbers,
    convolution,
    creation,
    elementwise,
    indexing,
    matrix,
    movement,
    normalization,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
)

complex_numbers.register()

__all__ = [
    "attention",
    "complex_numbers",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "matrix",
    "movement",
    "normalization",
    "quantized",
    "random",
    "recurrent",
    "reduction",
    "resize",
]
