"""3x3 convolutions on a GPU by Winograd's algorithm in three dispatches: when it pays, and with
which tiles.

Owns the price of both ways, in nanoseconds of a device whose speeds the target file has; devices of
which it has none do no such thing. The parts are aot/ops/winograd_parts.py's.
"""

from __future__ import annotations

from aot.analysis.cost.plan import plan
from aot.analysis.memory.views import memory_order
from aot.base.records import dataclass
from aot.ir import dims
from aot.ir.assumed_extents import IMAGE
from aot.ir.dims import Dim
from aot.ir.record import Call
from aot.ir.schedule import QUAD
from aot.ir.types import DType, TensorType
from aot.ops.contraction import MATMUL
from aot.ops.winograd_parts import KERNEL, MATRICES, tiles_along
from aot.target.model import GpuGeometry, Target

TAPS = KERNEL * KERNEL
# the most that one part may store for another: a program's arena has room for it
MOST_PART_BYTES = 32 << 20


@dataclass(frozen=True)
class Parts:
    """A convolution by Winograd's algorithm as three dispatches.

    Attributes:
        outputs: along a side of a tile.
        ns: what it takes of a run.
        more_bytes: of filters at points than of filters.
    """

    outputs: int
    ns: float
    more_bytes: int


def fits(call: Call, target: Target) -> bool:
    """Whether `call` can be computed in three dispatches on `target`: a 3x3 float convolution with
    stride 1 and contiguous channels."""
    contraction = call.contraction
    if contraction is None or call.attrs.get("algorithm") != "direct" or target.gpu is None:
        return False
    left, right, result = contraction.left, contraction.right, contraction.result
    return (
        target.gpu.has_speeds
        and left.dtype is right.dtype is contraction.accumulator is DType.F32
        and contraction.groups == 1
        and len(contraction.windows) == 2
        and all((w.kernel, w.stride, w.dilation) == (KERNEL, 1, 1) for w in contraction.windows)
        and isinstance(contraction.channels, int)
        and isinstance(contraction.n, int)
        and memory_order(left.type)[-1] == left.summed
        and memory_order(result)[-1] == contraction.column
    )


def ways(call: Call, target: Target, *, stores_half: bool) -> list[Parts]:
    """The tile sizes with which Winograd's algorithm in three dispatches can do a convolution that
    `fits`; with `stores_half` only those that round little more than direct sums.
    """
    gpu = target.gpu
    assert gpu is not None
    if stores_half and any(m.left is DType.F16 for m in gpu.matrices):
        return []  # products cost little beside what transforms store
    x, w = call.operand(0), call.operand(1)
    elements = _number(dims.multiply(x.dims[1], w.dims[0]))
    each = DType.F16.bytes if stores_half else w.dtype.bytes
    found = []
    for outputs in (2,) if stores_half else MATRICES:
        ns = parts_ns(call, outputs, target)
        if ns is not None:
            more = (MATRICES[outputs].points - TAPS) * elements * each
            found.append(Parts(outputs, ns, more))
    return found


def direct_ns(call: Call, target: Target) -> float:
    """Estimated nanoseconds of a convolution's direct dispatch."""
    x, w, gpu = call.operand(0), call.operand(1), target.gpu
    (result,) = call.result_types
    assert gpu is not None
    terms = dims.multiply(x.dims[1], TAPS)
    products = _number(dims.multiply(result.element_count, terms))
    moved = sum(_bytes_of(type) for type in (x, w, result))
    return _ns(gpu, products, _blocks(call, terms, target), moved)


def parts_ns(call: Call, outputs: int, target: Target) -> float | None:
    """Estimated nanoseconds of the three dispatches of Winograd's algorithm; None where one needs
    too large a buffer.
    """
    gpu, matrices = target.gpu, MATRICES[outputs]
    assert gpu is not None
    (result,) = call.result_types
    images, filters, *extents = result.dims
    channels = call.operand(0).dims[1]
    tiles = dims.product([images, *(tiles_along(n, outputs) for n in extents)])
    points = TensorType(DType.F32, (matrices.points, tiles, channels))
    weights = TensorType(DType.F32, (matrices.points, channels, filters))
    product = MATMUL.call([points, weights], {}, call.origin)
    (sums,) = product.result_types
    if max(map(_bytes_of, (points, sums))) > MOST_PART_BYTES:
        return None
    products = _number(dims.multiply(sums.element_count, channels))
    moved = sum(map(_bytes_of, (points, weights, sums)))
    total = _ns(gpu, products, _blocks(product, channels, target), moved)
    total += _ns(gpu, 0, 1, _bytes_of(call.operand(0)) + _bytes_of(points))
    return total + _ns(gpu, 0, 1, _bytes_of(sums) + _bytes_of(result))


def _ns(gpu: GpuGeometry, products: int, blocks: int, moved: int) -> float:
    """Estimated nanoseconds of a dispatch: its launch time plus the longest of: multiplications,
    dependent blocks of terms, and memory traffic in bytes.
    """
    return gpu.launch_ns + max(
        1000 * products / gpu.products_per_us,
        blocks * gpu.block_ns,
        1000 * moved / gpu.bytes_per_us,
    )


def _blocks(call: Call, terms: Dim, target: Target) -> int:
    """The number of blocks into which the terms of a sum are divided."""
    return -(-_number(terms) // max(plan(call, target).staged, QUAD))


def _bytes_of(type: TensorType) -> int:
    return _number(type.element_count) * type.dtype.bytes


def _number(dim: Dim) -> int:
    known = dims.estimate(dim, IMAGE)
    return IMAGE if known is None else known
