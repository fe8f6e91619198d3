"""Simplifies element-wise loop nests, which have no reductions: merges their axes as far as
possible.

Owns how a packed result is seen as axes of its own. Owns no loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from aot.ir import expr
from aot.ir.expr import Binary
from aot.ir.types import DType
from aot.kernels.nest.narrow import in_kept_bits
from aot.kernels.nest.nest import Nest, Output, collapse, split_axis, without_division


class Elements:
    """A loop nest without reductions: each result element is computed by itself."""

    def __init__(self, nest: Nest, output: Output) -> None:
        self._nest = nest
        self.output = _collapsed(without_division(output))
        """By as few axes as its memory has."""
        self.has_vectors = not nest.is_gpu and nest.lanes > 1 and bool(self.output.axes)

    @cached_property
    def in_vectors(self) -> Output:
        """The loop nest as a CPU's vector loops compute it: axes in the memory order of a packed
        result, integers as narrow as the stored bits allow."""
        packed = in_order(self.output)
        output = self.output if packed is None else _collapsed(packed)
        return output.rewritten(in_kept_bits)

    @cached_property
    def wide(self) -> Nest:
        """A `Nest` whose vectors are filled by the widest elements in use. The plan counts lanes of
        32 bits, but all elements may be narrower."""
        nest, output = self._nest, self.in_vectors
        places = [i for value in output.values for x in expr.loads(value) for i in x.indices]
        if any(map(expr.loads, places)) and not nest.target.looks_up_bytes:
            return nest  # each lane loads for itself
        stored = [output.buffer.dtype, *(buffer.dtype for buffer, _ in output.others)]
        nodes = {node for value in output.values for node in expr.nodes(value)}
        # what is the same in all lanes is a scalar
        varied = (node for node in nodes if node.dtype is not DType.INDEX and expr.free_vars(node))
        used = [node.dtype for node in varied]
        widest = max(dtype.bytes for dtype in (*stored, *used))
        return replace(nest, lanes=max(nest.lanes, nest.target.vector_bytes // widest))


def _collapsed(output: Output) -> Output:
    axes, gone = collapse(output.axes, output.address, output.values)
    return output.rewritten(lambda e: expr.substitute(e, gone), axes)


def in_order(output: Output) -> Output | None:
    """The output with each axis split into the groups that its packed address divides it into, in
    memory order; None where the address splits no axis, or some axis has no constant stride.
    """
    found = output
    while (group := _grouped(found)) is not None:
        found = split_axis(found, *group)
    if found is output:
        return None
    steps = [expr.coefficient(found.address, axis.var) for axis in found.axes]
    if not all(isinstance(step, int) and step > 0 for step in steps):
        return None
    order = sorted(range(len(steps)), key=lambda k: -steps[k])  # type: ignore[operator]
    return found.rewritten(lambda e: e, [found.axes[k] for k in order])


def _grouped(output: Output) -> tuple[int, int] | None:
    """(axis number, group size) if the address divides the axis into whole groups; else None."""
    return next(((n, size) for n, size, left in groups_of(output) if not left), None)


def groups_of(output: Output) -> Iterator[tuple[int, int, int]]:
    """The axes that a packed result's address divides by a constant. Yields each axis's number,
    the constant, and the remainder of its extent."""
    for e in expr.nodes(output.address):
        if not isinstance(e, Binary) or e.op not in ("floordiv", "floormod"):
            continue
        size = expr.dim_of(e.b)
        for number, axis in enumerate(output.axes):
            if e.a is axis.var and isinstance(size, int) and isinstance(axis.extent, int):
                yield number, size, axis.extent % size
