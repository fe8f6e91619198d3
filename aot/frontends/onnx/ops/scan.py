"""Imports Scan: a loop whose body receives a row of each scanned input and yields rows of outputs.

Owns axes and directions. A row is a gather by the run's number, which fusion takes into what reads
the row; rows of outputs are stacked in front, then turned and moved as the node wants them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot.frontends.onnx.blocks import GraphImporter
from aot.frontends.onnx.loop_forms import LoopForm
from aot.frontends.onnx.loops import loop_results
from aot.frontends.onnx.scopes import Scope
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.equalities import difference
from aot.ir.graph import Assumption, ConstantData, Value
from aot.ir.rewriter import Rewriter, insert_constant
from aot.ops import lookup


def import_scan(importer: GraphImporter, node: Node, outer: Scope) -> Sequence[Value | None]:
    """The results of an ONNX Scan.

    Raises:
        UnsupportedNodeError: what it needs is not there, or has no fixed shape.
        CompileError: the model is wrong.
    """
    if node.opset < 9:
        raise UnsupportedNodeError(
            "before opset 9 a Scan goes over a batch of sequences of different lengths, which is "
            "not supported; export the model with opset 9 or later"
        )
    body = node.attribute("body").g
    scanned = node.int_attr("num_scan_inputs")
    kept = len(node.inputs) - scanned
    if scanned < 1 or kept < 0:
        raise node.error(
            f"num_scan_inputs is {scanned}, expected 1 to {len(node.inputs)}, its operands"
        )
    rows = len(body.output) - kept
    if len(body.input) != len(node.inputs) or rows < 0 or len(node.outputs) > len(body.output):
        raise node.error(
            f"its body has {len(body.input)} inputs and {len(body.output)} outputs; the node has "
            f"{len(node.inputs)} operands, {kept} of them carried, and {len(node.outputs)} outputs"
        )
    source = _Scanned(node, [node.input(kept + n) for n in range(scanned)])
    names = [i.name for i in body.input]
    form = LoopForm(
        importer,
        node,
        outer,
        body,
        [node.input(n) for n in range(kept)],
        names[:kept],
        lambda rewriter, number: dict(
            zip(names[kept:], source.rows(rewriter, number), strict=True)
        ),
        source.trips,
        has_condition=False,
        wanted={n for n in range(len(node.outputs)) if node.wants(n)},
    )
    axes = _list(node, "scan_output_axes", rows)
    directions = _list(node, "scan_output_directions", rows)
    results = [v for v in loop_results(form) if isinstance(v, Value)]
    for n in range(rows):
        if node.wants(kept + n):
            results[kept + n] = _placed(node, results[kept + n], axes[n], bool(directions[n]))
    return results


def _list(node: Node, name: str, count: int) -> Sequence[int]:
    found = node.ints_attr(name, (0,) * count)
    if len(found) != count:
        raise node.error(f"{name} has {len(found)} items, expected {count}")
    return found


class _Scanned:
    """The scanned inputs, of which the body receives rows.

    Attributes:
        trips: how many rows they have.
    """

    def __init__(self, node: Node, inputs: Sequence[Value]) -> None:
        self.node = node
        self.inputs = inputs
        axes = _list(node, "scan_input_axes", len(inputs))
        self.axes = [node.axis(a, x.type.rank) for a, x in zip(axes, inputs, strict=True)]
        self.directions = _list(node, "scan_input_directions", len(inputs))
        if not {*self.directions} <= {0, 1}:
            raise node.error(f"scan_input_directions are {list(self.directions)}, expected 0 or 1")
        extents = [x.type.dims[a] for a, x in zip(self.axes, inputs, strict=True)]
        self.trips = next((e for e in extents if isinstance(e, int)), extents[0])
        if self.trips == 0:
            raise UnsupportedNodeError("its scanned inputs have no rows")
        for extent in extents:
            self._same(extent)

    def _same(self, extent: Dim) -> None:
        if extent == self.trips:
            return
        low, high = dims.bounds(difference(extent, self.trips), {})
        if (low is not None and low > 0) or (high is not None and high < 0):
            raise self.node.error(
                f"what it scans has {self.trips} and {extent} rows, expected as many"
            )
        reason = f"Scan (node {self.node.label!r}): what it scans has as many rows"
        self.node.rewriter.function.assumptions[Assumption(extent, self.trips, reason)] = None

    def rows(self, rewriter: Rewriter, number: Value) -> list[Value]:
        """Row `number` of each scanned input, counted from the end if its direction is reversed."""
        found = []
        for x, axis, direction in zip(self.inputs, self.axes, self.directions, strict=True):
            at = self._from_the_end(rewriter, number) if direction else number
            made = rewriter.create(lookup("gather"), [x, at], {"axis": axis}, self.node.label)
            found.append(made.result)
        return found

    def _from_the_end(self, rewriter: Rewriter, number: Value) -> Value:
        last, label = dims.add(self.trips, -1), self.node.label
        if isinstance(last, int):
            end = insert_constant(rewriter, ConstantData(np.array(last, np.int64)), label)
        else:
            listed = rewriter.create(lookup("dim_values"), [], {"dims": (last,)}, label).result
            end = rewriter.create(lookup("reshape"), [listed], {"shape": ()}, label).result
        return rewriter.create(lookup("sub"), [end, number], {}, label).result


def _placed(node: Node, stacked: Value, axis: int, is_reversed: bool) -> Value:
    """Stacked rows in the order and along the axis of the node's output."""
    rank = stacked.type.rank
    if is_reversed:
        count, *rest = stacked.type.dims
        stacked = node.emit(
            "slice",
            stacked,
            starts=(dims.add(count, -1), *[0] * len(rest)),
            stops=(-1, *rest),
            steps=(-1, *[1] * len(rest)),
        )
    axis = node.axis(axis, rank)
    if axis == 0:
        return stacked
    perm = [*range(1, rank)]
    perm.insert(axis, 0)
    return node.emit("transpose", stacked, perm=tuple(perm))
