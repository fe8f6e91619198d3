"""The estimated time of a GPU's workgroups, by which a driver splits a run into submissions.

A system ends the work of a device that is busy for seconds, so no submission may take that long.

An estimate from arithmetic and traffic; decides nothing of what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from aot.analysis.control import control_ops
from aot.analysis.dispatches import dims_of_dispatch, executable_of, is_dispatch
from aot.analysis.launches import Launch
from aot.ir import dims
from aot.ir.assumed_extents import WORK
from aot.ir.dims import Dim
from aot.ir.graph import Function
from aot.target.model import GpuGeometry

# Multiply-adds and bytes per microsecond of a slow phone's GPU, where the target file has no speeds
SLOW_PRODUCTS, SLOW_BYTES = 10_000, 4_000
_MOST = (1 << 32) - 1
_NS_PER_US = 1000


def group_prices(
    functions: Sequence[Function],
    launches: Sequence[Sequence[Launch]],
    grids: Mapping[str, tuple[tuple[Dim, Dim, Dim], tuple[str, ...]]],
    gpu: GpuGeometry,
) -> dict[str, int]:
    """Nanoseconds of a workgroup by executable, the most among its dispatches: its share of the
    longer of the dispatch's arithmetic and its traffic on a busy device.

    Args:
        functions: the entry points.
        launches: what the dispatches of each of them do, in order.
        grids: the grid of each executable, as dims over its dim parameters, and their names.
    """
    found: dict[str, int] = {}
    for function, known in zip(functions, launches, strict=True):
        ops = [op for op in control_ops(function) if is_dispatch(op)]
        for op, launch in zip(ops, known, strict=bool(known)):
            name = executable_of(op)
            grid, names = grids[name]
            values = dims_of_dispatch(op, names)
            groups = dims.estimate(dims.substitute(dims.product(grid), values), WORK)
            price = _price(launch, gpu) / max(groups or 1, 1)
            found[name] = max(found.get(name, 0), min(ceil(price), _MOST))
    return found


def _price(launch: Launch, gpu: GpuGeometry) -> float:
    """Nanoseconds of a dispatch."""
    products = gpu.products_per_us or SLOW_PRODUCTS
    traffic = gpu.bytes_per_us or SLOW_BYTES
    flops, moved = (dims.estimate(d, WORK) or 0 for d in (launch.flops, launch.bytes))
    return _NS_PER_US * max(flops / 2 / products, moved / traffic)
