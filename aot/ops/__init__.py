"""The op table. Importing this package fills the registry; each family is one file."""

from aot.ops import (
    arg,
    bits,
    contraction,
    elementwise,
    indexing,
    lines,
    movement,
    pack,
    pooling,
    recurrent,
    reduction,
    selection,
    shape,
    spatial,
    structure,
)
from aot.ops.record import REGISTRY, OpRecord, lookup

__all__ = [
    "REGISTRY",
    "OpRecord",
    "arg",
    "bits",
    "contraction",
    "elementwise",
    "indexing",
    "lines",
    "lookup",
    "movement",
    "pack",
    "pooling",
    "recurrent",
    "reduction",
    "selection",
    "shape",
    "spatial",
    "structure",
]
