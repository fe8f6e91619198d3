"""The op table. Importing this package fills the registry; each family is one file."""

from aot.ops import (
    contraction,
    elementwise,
    movement,
    pack,
    pooling,
    recurrent,
    reduction,
    selection,
    shape,
    structure,
)
from aot.ops.record import REGISTRY, OpRecord, lookup

__all__ = [
    "REGISTRY",
    "OpRecord",
    "contraction",
    "elementwise",
    "lookup",
    "movement",
    "pack",
    "pooling",
    "recurrent",
    "reduction",
    "selection",
    "shape",
    "structure",
]
