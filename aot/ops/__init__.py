"""The op table. Importing this package fills the registry; each family is one file."""

from aot.ops import (
    bits,
    contraction,
    elementwise,
    indexing,
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
    "bits",
    "contraction",
    "elementwise",
    "indexing",
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
