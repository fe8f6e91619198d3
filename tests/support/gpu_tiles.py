"""Products and convolutions between other executables, and the GPUs whose tiles they have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aot.target import selection as targets
from aot.target.model import Target
from tests.support.executables import PANELS, Conv, Extents, Product


@dataclass(frozen=True)
class TurnedProduct(Product):
    """A product with a bias and an activation, by the rows of a matrix and not by its columns."""

    def operands(self) -> list[tuple[str, int]]:
        b, _, k, n = self._extents()
        left, _, bias = super().operands()
        return [left, (f"f32[{b}{n}, {k}]", 1), bias]

    def body(self) -> tuple[list[str], str]:
        b, _, k, n = self._extents()
        ops, result = super().body()
        perm = [*range(len(self.batch)), len(self.batch) + 1, len(self.batch)]
        turn = f"%w = transpose(%1) {{ perm = {perm} }} : f32[{b}{k}, {n}]"
        return [turn, ops[0].replace("%1", "%w"), *ops[1:]], result


def product(
    rows: int,
    terms: int,
    columns: int,
    *,
    batch: Extents = (),
    opened: str = "",
    is_packed: bool = False,
    is_turned: bool = False,
) -> Product:
    """A product with a bias and an activation."""
    made = TurnedProduct if is_turned else Product
    right = PANELS if is_packed else ""
    more: dict[str, Any] = {"has_bias": True, "end": "relu", "opened": opened}
    places = (1, 0 if is_packed else 1, 0, 1)
    return made((rows, terms, columns), right, batch, bindings=places, **more)


def conv(
    size: Extents,
    channels: int,
    taps: Extents,
    columns: int,
    *,
    begin: int = 0,
    end: int = 0,
    is_first: bool = False,
    is_packed: bool = False,
    **more: Any,
) -> Conv:
    """A convolution with a bias; `is_first`: channels lie outside of what windows slide along."""
    rank = len(size)
    spatial = ":".join(map(str, range(2, rank + 2)))
    last = "" if is_first else f"{{order=0:{spatial}:1}}"
    panels = f"{{splits=0/16 order=0:{spatial}:1:{rank + 2}}}"
    weights = panels if is_packed else f"{{order={spatial}:1:0}}"
    known = {"images": 1, "is_image": True, "bindings": (1, 0, 0, 1), "weights": weights, **more}
    pads = (begin,) * rank + (end,) * rank
    return Conv((channels, columns, *size), taps, pad=pads, left=last, result=last, **known)


def busy(lanes: int, name: str = "vulkan-1.1", registers: int = 0, **gpu: Any) -> Target:
    """A GPU that so many lanes keep busy, with other facts of its own."""
    target = targets.load(name)
    assert target.gpu is not None
    made = replace(target, gpu=replace(target.gpu, busy_lanes=lanes, **gpu))
    return replace(made, vector_registers=registers) if registers else made


def staging(
    terms: int, busy_lanes: int = 0, name: str = "vulkan-1.1", registers: int = 64
) -> Target:
    """A GPU that has so many terms brought into shared memory at a time; lanes have a sum for two
    registers."""
    return busy(busy_lanes, name, registers, staged_terms=terms)
