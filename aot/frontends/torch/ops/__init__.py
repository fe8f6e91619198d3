"""The entries of the table, by family. Importing this package fills the table."""

from aot.frontends.torch.ops import (
    attention,
    bags,
    complex_numbers,
    convolution,
    creation,
    elementwise,
    indexing,
    linear_algebra,
    matrix,
    movement,
    normalization,
    number_parts,
    order,
    partial_writes,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    special,
)

complex_numbers.register()

__all__ = [
    "attention",
    "bags",
    "complex_numbers",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "linear_algebra",
    "matrix",
    "movement",
    "normalization",
    "number_parts",
    "order",
    "partial_writes",
    "quantized",
    "random",
    "recurrent",
    "reduction",
    "resize",
    "special",
]
