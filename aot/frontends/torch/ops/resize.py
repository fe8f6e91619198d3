"""PyTorch's interpolations and grid samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from aot.frontends.lib.coordinates import meant
from aot.frontends.lib.resize import Axis, Options, resized
from aot.frontends.torch.table import Node, torch_op
from aot.ir.dims import Dim
from aot.ir.graph import Value
from aot.ir.types import DType

Scales = Sequence["float | None"]

_GRID_MODES = ("linear", "nearest", "cubic")
_GRID_PADDING = ("zeros", "border", "reflection")


def _resized(n: Node, x: Value, options: Options, scales: Scales) -> Value:
    """x resized to the extents that torch computed. Explicit scales determine the coordinates, else
    the extents do."""
    spatial = x.type.rank - 2
    axes = []
    for number in range(spatial):
        axis = number + 2
        extent, size = x.type.dims[axis], n.dims[axis]
        scale = scales[number] if number < len(scales) else None
        if scale is None or options.coordinates == "align_corners":
            exact = _ratio(extent, size)
        else:
            exact = meant(scale, DType.F64)
        axes.append(Axis(axis, extent, size, exact))
    return resized(n, x, options, axes)


def _ratio(extent: Dim, size: Dim) -> Fraction | None:
    if extent == size:
        return Fraction(1)
    if isinstance(extent, int) and isinstance(size, int) and extent:
        return Fraction(size, extent)
    return None


def _nearest(rounding: str, coordinates: str) -> Callable[..., Value]:
    def build(n: Node, x: Value, size: Any, *scales: Any) -> Value:
        return _resized(n, x, Options("nearest", coordinates, rounding), _listed(scales))

    return build


def _listed(scales: Sequence[Any]) -> Scales:
    """Scales as one list, from separate arguments or a list."""
    if len(scales) == 1 and isinstance(scales[0], (list, tuple)):
        return list(scales[0])
    return list(scales)


for _rank in (1, 2, 3):
    torch_op(f"aten.upsample_nearest{_rank}d.default", f"aten.upsample_nearest{_rank}d.vec")(
        _nearest("floor", "asymmetric")
    )
    torch_op(
        f"aten._upsample_nearest_exact{_rank}d.default", f"aten._upsample_nearest_exact{_rank}d.vec"
    )(_nearest("round_prefer_ceil", "half_pixel"))


def _between(mode: str, cubic_a: float = -0.75, antialias: bool = False) -> Callable[..., Value]:
    def build(n: Node, x: Value, size: Any, aligns_corners: bool, *scales: Any) -> Value:
        coordinates = "align_corners" if aligns_corners else "half_pixel"
        # what antialiasing takes from outside counts for nothing
        options = Options(
            mode, coordinates, cubic_a=cubic_a, antialias=antialias, exclude_outside=antialias
        )
        return _resized(n, x, options, _listed(scales))

    return build


for _name, _build in {
    "upsample_linear1d": _between("linear"),
    "upsample_bilinear2d": _between("linear"),
    "upsample_trilinear3d": _between("linear"),
    "upsample_bicubic2d": _between("cubic"),
    "_upsample_bilinear2d_aa": _between("linear", antialias=True),
    "_upsample_bicubic2d_aa": _between("cubic", cubic_a=-0.5, antialias=True),
}.items():
    torch_op(f"aten.{_name}.default", f"aten.{_name}.vec")(_build)


@torch_op(
    "aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default"
)
def grid_sample(
    n: Node, x: Value, grid: Value, mode: int, padding: int, aligns_corners: bool
) -> Value:
    return n.emit(
        "grid_sample",
        x,
        grid,
        mode=_GRID_MODES[mode],
        padding=_GRID_PADDING[padding],
        align_corners=aligns_corners,
    )
