"""The parts of a 3x3 convolution by Winograd's algorithm, for targets that run them as separate
dispatches.

Tiles of inputs are transformed to points, products with filters that are transformed already are
summed at each point, which is `matmul`'s, and tiles of outputs are made of the sums: together what
`conv` computes, roundings apart. Owns the matrices of F(2x2, 3x3) and of F(4x4, 3x3), and what
transforms by them mean; aot/ops/winograd.py has the whole of it as one op, for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot.base.records import dataclass
from aot.ir import dims
from aot.ir import expr as e
from aot.ir.dims import Dim
from aot.ir.record import (
    Attribute,
    Call,
    Compute,
    Constraint,
    Kind,
    Operand,
    OpRecord,
    Sample,
    register,
)
from aot.ir.types import Array, DType, TensorType
from aot.ops.contraction import inside, window_extent
from aot.ops.contraction import may_be_positions as _may_be_positions
from aot.ops.elementwise import result_indices
from aot.ops.winograd import FILTER_LINES

Lines = tuple[tuple[float, ...], ...]
Load = Callable[[e.Expr, e.Expr], e.Expr]

KERNEL = 3  # taps along a side of a filter
_R = 2**0.5


@dataclass(frozen=True)
class Matrices:
    """The transform matrices of F(outputs x outputs, 3x3): for input tiles, filters and sums.

    A transform of x is M x M^T.
    """

    of_inputs: Lines
    of_filters: Lines
    of_sums: Lines

    @property
    def side(self) -> int:
        """The number of inputs, and of points, along a side of a tile."""
        return len(self.of_inputs)

    @property
    def points(self) -> int:
        return self.side * self.side


# by outputs along a side of a tile. The points of the first are 0, +-1 and infinity, those of the
# second 0, +-sqrt(2), +-1/sqrt(2) and infinity
# (aot/kernels/rules/products/winograd_lines.py says why)
MATRICES = {
    2: Matrices(
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
        ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, 1)),
    ),
    4: Matrices(
        (
            (1, 0, -5 / 2, 0, 1, 0),
            (0, -_R / 2, -1 / 2, _R, 1, 0),
            (0, _R / 2, -1 / 2, -_R, 1, 0),
            (0, -_R, -2, _R / 2, 1, 0),
            (0, _R, -2, -_R / 2, 1, 0),
            (0, 1, 0, -5 / 2, 0, 1),
        ),
        FILTER_LINES,
        (
            (1, 1 / _R, 1 / _R, _R, _R, 0),
            (0, 1, -1, 1, -1, 0),
            (0, _R, _R, 1 / _R, 1 / _R, 0),
            (0, 2, -2, 1 / 2, -1 / 2, 1),
        ),
    ),
}


def filters_at_points(filters: Array, outputs: int) -> Array:
    """Transforms filters [O, C, 3, 3] -> [points, C, O], in a fixed order and rounded once."""
    made = _transformed(MATRICES[outputs].of_filters, filters, (2, 3)).transpose(2, 3, 1, 0)
    points = made.reshape(MATRICES[outputs].points, filters.shape[1], filters.shape[0])
    return np.ascontiguousarray(points.astype(filters.dtype))


def tiles_along(extent: Dim, outputs: int) -> Dim:
    """The number of tiles along a dim of outputs."""
    return dims.ceil_divide(extent, outputs)


def _transformed(lines: Lines, x: Array, axes: tuple[int, int]) -> Array:
    """M x M^T over two axes of x, in float64 and a fixed order."""
    wide = x.astype(np.float64)
    for axis in axes:
        parts = np.moveaxis(wide, axis, 0)
        made = []
        for line in lines:
            total = np.zeros(parts.shape[1:])
            for factor, part in zip(line, parts, strict=True):
                if factor != 0:
                    total += factor * part
            made.append(total)
        wide = np.moveaxis(np.stack(made), 0, axis)
    return wide


def _entry(lines: Lines, row: e.Expr, column: e.Expr) -> e.Expr:
    """An element of a constant matrix, at positions that may be any expressions."""
    place = e.add(e.mul(row, e.index(len(lines[0]))), column)
    found: e.Expr = e.const(0.0, DType.F32)
    for number, value in enumerate(value for line in lines for value in line):
        if value != 0:
            is_here = e.binary("eq", place, e.index(number))
            found = e.select(is_here, e.const(float(value), DType.F32), found)
    return found


def _element(lines: Lines, place: tuple[e.Expr, e.Expr], load: Load) -> e.Expr:
    """Element `place` of M x M^T, where `load(i, j)` gives an element of x."""
    i, j = e.Var("k0"), e.Var("k1")
    both = e.mul(_entry(lines, place[0], i), _entry(lines, place[1], j))
    extent = len(lines[0])
    return e.Reduce("sum", ((i, extent), (j, extent)), e.mul(load(i, j), both), DType.F32)


def matrices_of(call: Call) -> Matrices:
    return MATRICES[call.int("outputs")]


def _has_matrices(call: Call) -> bool:
    return call.int("outputs") in MATRICES


_F32 = frozenset((DType.F32,))
_OUTPUTS = Attribute("outputs", "int", doc="along a side of a tile: 2 or 4")
_HAS_MATRICES = Constraint("outputs is 2 or 4", _has_matrices)


# inputs


def _pads_fit(call: Call) -> bool:
    return len(call.dims("pads")) == 4 and _may_be_positions(call.dims("pads"))


def _input_tiles(call: Call) -> tuple[Dim, Dim]:
    """(tiles down, tiles across) an image."""
    x, pads, outputs = call.operand(0), call.dims("pads"), call.int("outputs")
    down, across = (
        tiles_along(window_extent(x.dims[2 + d], KERNEL, 1, 1, pads[d], pads[2 + d]), outputs)
        for d in range(2)
    )
    return down, across


def _inputs_type(call: Call) -> Sequence[TensorType]:
    x = call.operand(0)
    tiles = dims.product([x.dims[0], *_input_tiles(call)])
    return [TensorType(x.dtype, (matrices_of(call).points, tiles, x.dims[1]))]


def _inputs_compute(call: Call) -> Sequence[Compute]:
    x, pads, made = call.operand(0), call.dims("pads"), matrices_of(call)
    point, tile, channel = indices = result_indices(3)
    down, across = _input_tiles(call)
    image, *place = _split(tile, down, across)

    def load(i: e.Expr, j: e.Expr) -> e.Expr:
        positions, conditions = [], []
        for d, (number, tap) in enumerate(zip(place, (i, j), strict=True)):
            first = e.mul(number, e.index(call.int("outputs")))
            positions.append(e.sub(e.add(first, tap), e.index(pads[d])))
            conditions.extend(inside(positions[-1], x.dims[2 + d]))
        guard = e.all_of(conditions)
        return e.Load(0, (image, channel, *positions), x.dtype, guard, e.const(0.0, x.dtype))

    side = e.index(made.side)
    row, column = e.binary("floordiv", point, side), e.binary("floormod", point, side)
    return [Compute(indices, _element(made.of_inputs, (row, column), load))]


def _split(tile: e.Expr, down: Dim, across: Dim) -> tuple[e.Expr, e.Expr, e.Expr]:
    """(image, row, column) of a tile, from its number."""
    line = e.binary("floordiv", tile, e.index(across))
    return (
        e.binary("floordiv", line, e.index(down)),
        e.binary("floormod", line, e.index(down)),
        e.binary("floormod", tile, e.index(across)),
    )


def _inputs_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    x: Array = inputs[0]
    made, outputs = matrices_of(call), call.int("outputs")
    images, channels, height, width = x.shape
    down, across = (int(n) for n in _input_tiles(call) if isinstance(n, int))
    padded = np.zeros((images, channels, outputs * down + 2, outputs * across + 2), x.dtype)
    top, left = (int(p) for p in call.dims("pads")[:2] if isinstance(p, int))
    padded[:, :, top : top + height, left : left + width] = x
    windows = np.lib.stride_tricks.sliding_window_view(padded, (made.side, made.side), (2, 3))
    tiles = windows[:, :, ::outputs, ::outputs]  # image, channel, tiles, taps
    points = _transformed(made.of_inputs, tiles, (4, 5)).transpose(4, 5, 0, 2, 3, 1)
    return [points.reshape(made.points, images * down * across, channels).astype(x.dtype)]


def _inputs_sample(shape: tuple[int, ...], outputs: int, *pads: int) -> Sample:
    return Sample((TensorType(DType.F32, shape),), {"pads": pads, "outputs": outputs})


WINOGRAD_INPUTS = register(
    OpRecord(
        name="winograd_inputs",
        summary="Tiles of a 3x3 convolution's inputs at Winograd's points: [points, tiles, C].",
        operands=(Operand("x", _F32),),
        attributes=(
            Attribute("pads", "dims", doc="elements at the begins, then at the ends, of both dims"),
            _OUTPUTS,
        ),
        constraints=(
            Constraint("x is [N, C, H, W]", lambda call: call.operand(0).rank == 4),
            Constraint("pads has four numbers that are not negative", _pads_fit),
            _HAS_MATRICES,
        ),
        infer=_inputs_type,
        reference=_inputs_reference,
        compute=_inputs_compute,
        kind=Kind.REDUCTION,
        samples=(
            _inputs_sample((1, 3, 2, 5), 4, 1, 1, 1, 1),
            _inputs_sample((2, 3, 4, 3), 2, 2, 0, 0, 1),
        ),
    )
)


# outputs


def _output_tiles(call: Call) -> tuple[Dim, Dim]:
    down, across = (
        tiles_along(call.dim(name), call.int("outputs")) for name in ("height", "width")
    )
    return down, across


def _tiles_cover(call: Call) -> bool:
    tiles = dims.product([call.dim("images"), *_output_tiles(call)])
    return call.equal(call.operand(0).dims[1], tiles, "winograd_outputs: a tile for its outputs")


def _has_points(call: Call) -> bool:
    sums = call.operand(0)
    return sums.rank == 3 and call.equal(
        sums.dims[0], matrices_of(call).points, "winograd_outputs: as many points as outputs say"
    )


def _bias_fits(call: Call) -> bool:
    if not call.has(1):
        return True
    bias, filters = call.operand(1), call.operand(0).dims[2]
    return bias.rank == 1 and call.equal(bias.dims[0], filters, "winograd_outputs: a bias a filter")


def _outputs_type(call: Call) -> Sequence[TensorType]:
    sums = call.operand(0)
    extents = call.dim("images"), sums.dims[2], call.dim("height"), call.dim("width")
    return [TensorType(sums.dtype, extents)]


def _outputs_compute(call: Call) -> Sequence[Compute]:
    dtype, side, made = call.operand(0).dtype, e.index(call.int("outputs")), matrices_of(call)
    image, filter, y, x = indices = result_indices(4)
    number: e.Expr = image
    for place, tiles in zip((y, x), _output_tiles(call), strict=True):
        number = e.add(e.mul(number, e.index(tiles)), e.binary("floordiv", place, side))

    def load(i: e.Expr, j: e.Expr) -> e.Expr:
        point = e.add(e.mul(i, e.index(made.side)), j)
        return e.Load(0, (point, number, filter), dtype)

    within = e.binary("floormod", y, side), e.binary("floormod", x, side)
    total = _element(made.of_sums, within, load)
    if call.has(1):
        total = e.add(total, e.Load(1, (filter,), call.operand(1).dtype))
    return [Compute(indices, total)]


def _outputs_reference(call: Call, inputs: Sequence[Any]) -> Sequence[Any]:
    sums: Array = inputs[0]
    made, outputs = matrices_of(call), call.int("outputs")
    down, across = (int(n) for n in _output_tiles(call) if isinstance(n, int))
    images, filters = call.int("images"), sums.shape[2]
    points = sums.reshape(made.side, made.side, images, down, across, filters)
    tiles = _transformed(made.of_sums, points, (0, 1)).transpose(2, 5, 3, 0, 4, 1)
    whole = tiles.reshape(images, filters, outputs * down, outputs * across)
    found = whole[:, :, : call.int("height"), : call.int("width")]
    if len(inputs) > 1 and inputs[1] is not None:
        found = found + inputs[1].astype(np.float64).reshape(-1, 1, 1)
    return [found.astype(sums.dtype)]


def _outputs_sample(shape: tuple[int, int, int, int], outputs: int, *, bias: bool) -> Sample:
    images, filters, height, width = shape
    tiles = images * -(-height // outputs) * -(-width // outputs)
    types = [TensorType(DType.F32, (MATRICES[outputs].points, tiles, filters))]
    if bias:
        types.append(TensorType(DType.F32, (filters,)))
    attrs = {"images": images, "height": height, "width": width, "outputs": outputs}
    return Sample(tuple(types), attrs)


WINOGRAD_OUTPUTS = register(
    OpRecord(
        name="winograd_outputs",
        summary="Outputs of a 3x3 convolution from sums at Winograd's points, [points, tiles, O].",
        operands=(
            Operand("sums", _F32),
            Operand("bias", _F32, kind="optional"),
        ),
        attributes=(
            Attribute("images", "dim", doc="how many images the tiles are of"),
            Attribute("height", "dim", doc="outputs down an image"),
            Attribute("width", "dim", doc="outputs across it"),
            _OUTPUTS,
        ),
        constraints=(
            _HAS_MATRICES,
            Constraint("sums is [points, tiles, O]", _has_points),
            Constraint("there is a tile for all outputs, and no more", _tiles_cover),
            Constraint("bias is one number a filter", _bias_fits),
        ),
        infer=_outputs_type,
        reference=_outputs_reference,
        compute=_outputs_compute,
        kind=Kind.REDUCTION,
        samples=(
            _outputs_sample((1, 3, 3, 5), 4, bias=True),
            _outputs_sample((2, 4, 1, 3), 2, bias=False),
        ),
    )
)

TRANSFORMS = (WINOGRAD_INPUTS, WINOGRAD_OUTPUTS)
