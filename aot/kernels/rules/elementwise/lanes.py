"""Element-wise loops with lanes along the innermost axis of the result.

Owns what a GPU's lane does for several neighbours, and what every other rule leaves.
"""

from __future__ import annotations

from functools import partial

from aot.ir.expr import Expr
from aot.kernels.ir.nodes import Stmt
from aot.kernels.match.work import Build, Loops, Work
from aot.kernels.nest.data_places import vector_places
from aot.kernels.nest.nest import Values
from aot.kernels.nest.over_output import lanes_over_output
from aot.kernels.rules.elementwise.neighbours_gpu import Neighbours


def schedule_neighbours(work: Work) -> Build | None:
    """Loops in which each lane of a GPU loads and stores four contiguous elements; None where they
    are not contiguous.
    """
    output = work.elements.output
    together = Neighbours.of(work.nest, output, output.axes)
    if together is None:
        return None

    def four(values: Values, width: int, lane: Expr | None) -> list[Stmt]:
        return together.stores(values)

    return lambda: lanes_over_output(work.nest, together.axes, four)


def schedule_elements(work: Work) -> Build:
    """Loops with one element per lane, for any element-wise output."""
    return partial(_elements, work)


def _elements(work: Work) -> Loops:
    nest, output = work.nest, work.elements.output
    if work.elements.has_vectors:
        nest, output = work.elements.wide, work.elements.in_vectors
        places = vector_places(nest, output.axes[-1].var)
        output = output if places is None else output.rewritten(places)

    def one(values: Values, width: int, lane: Expr | None) -> list[Stmt]:
        return output.stores(nest, values)

    return lanes_over_output(nest, output.axes, one, may_mask=True)
