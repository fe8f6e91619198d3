"""Windows over channels-first planes whose results are stored channels last, on a CPU.

Owns when such a result is made plane by plane, with lanes along a line of a plane.
"""

from __future__ import annotations

from dataclasses import replace

from aot.ir import expr
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.nest import Nest, Output
from aot.kernels.rules.windows.padded import padded
from aot.kernels.rules.windows.plane_windows import plane_window

# bytes between neighbouring results beyond which planes that share their lines miss the cache, as
# these are in few of its sets
FAR_RESULTS = 768


def schedule_by_planes(work: Work) -> Build | None:
    """The loops of a window over planes whose results are stored channels last; None for any other
    output.
    """
    nest, found = work.nest, work.reduced
    output = None if found.free else _by_planes(nest, found.output)
    if output is None:
        return None
    return plane_window(nest, output, found.reduces) or padded(nest, output, found.reduces)


def _by_planes(nest: Nest, output: Output) -> Output | None:
    """The output with its channel axis moved outside the plane's axes; None where a plane's line
    fills no vector, or where the cache would lose the lines that neighbouring planes' results
    share."""
    if len(output.axes) < 3:
        return None
    *outer, down, along, last = output.axes
    if not isinstance(along.extent, int) or along.extent < nest.lanes:
        return None
    step = expr.coefficient(output.address, along.var)
    if not isinstance(step, int) or not isinstance(down.extent, int):
        return None
    step *= output.values[0].dtype.bytes
    if step > FAR_RESULTS or step * along.extent * down.extent > nest.target.l2_bytes:
        return None
    return replace(output, axes=(*outer, last, down, along))
