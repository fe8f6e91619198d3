"""Imports ONNX's If: only the branch that is known to be taken, or the only one that fits the
model's shapes; otherwise both, as blocks of one op.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx

from aot.errors import CompileError
from aot.frontends.lib.extents import (
    cut,
    dim_value,
    is_given,
    is_made_inside,
    narrowed,
    own_extent,
    room,
    widened,
)
from aot.frontends.onnx.blocks import (
    GraphImporter,
    Tried,
    as_type,
    discard,
    finish,
    insert_op,
    try_block,
)
from aot.frontends.onnx.conditions import Comparison, comparison_of
from aot.frontends.onnx.graphs import captured_by
from aot.frontends.onnx.scopes import Held, Scope, TensorList
from aot.frontends.onnx.stacks import (
    StackType,
    joined,
    stack_of,
    stacked,
    tensors_of,
    type_of,
)
from aot.frontends.onnx.table import Node, UnsupportedNodeError
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.equalities import DimEqualities, difference
from aot.ir.graph import Assumption, Block, Value
from aot.ir.rewriter import Rewriter

BRANCHES = ("then_branch", "else_branch")
IN_BRANCH = " (in the "  # what a reason says of a branch that may not run


def import_if(
    importer: GraphImporter, node: Node, proto: onnx.NodeProto, outer: Scope
) -> Sequence[Held | None]:
    """The results of an If.

    Raises:
        UnsupportedNodeError: what it needs is not there, or its results have no one type.
        CompileError: the model is wrong.
    """
    condition = node.input(0)
    count = condition.type.element_count
    if isinstance(count, int) and count != 1:
        raise node.error(f"the condition has {count} elements, expected 1")
    compared = comparison_of(importer.values, condition)
    decided = _decided(importer, node, condition, compared)
    if decided is not None:
        return _taken(importer, node, proto, outer, decided)
    return _Open(importer, node, proto, outer, compared).results()


def _decided(
    importer: GraphImporter, node: Node, condition: Value, compared: Comparison | None
) -> bool | None:
    """The value of an If's condition where it is known at compile time; None where it is not."""
    if condition in importer.branching:  # this If is in a branch of one on the same condition
        return importer.branching[condition]
    known = importer.values.known(condition)
    if known is not None and known.dtype != object:
        return bool(known.reshape(()).item())
    return None if compared is None else compared.decided(node.rewriter.function)


def _branch(node: Node, name: str) -> onnx.GraphProto:
    graph: onnx.GraphProto = node.attribute(name).g
    if len(graph.output) < len(node.outputs):
        raise node.error(
            f"has {len(node.outputs)} outputs, but its branch gives {len(graph.output)}"
        )
    if graph.input:
        raise node.error("its branch has inputs, which a branch never has")
    return graph


def _taken(
    importer: GraphImporter, node: Node, proto: onnx.NodeProto, outer: Scope, is_first: bool
) -> Sequence[Held | None]:
    """The results of one branch, imported inline; the other branch is ignored."""
    graph = _branch(node, BRANCHES[0 if is_first else 1])
    found = importer.subgraph(graph, {}, outer, node.rewriter)
    first = next(name for name in proto.output if name)
    outer.captured[first] = captured_by(graph)
    outer.unsupported.extend((first, why) for why in found.lacks)
    if None in found.values:
        raise UnsupportedNodeError("")  # whose fault it is has been said
    return found.values


class _Open:
    """An If whose condition is unknown at import.

    Attributes:
        compared: the extents that its condition compares, if that is what it does.
        is_of_data: either branch may run, whatever shapes the inputs have.
    """

    def __init__(
        self,
        importer: GraphImporter,
        node: Node,
        proto: onnx.NodeProto,
        outer: Scope,
        compared: Comparison | None,
    ) -> None:
        self.importer = importer
        self.node = node
        self.proto = proto
        self.outer = outer
        self.compared = compared
        self.is_of_data = compared is None or is_given(
            node, difference(compared.left, compared.right)
        )
        graphs = [_branch(node, name) for name in BRANCHES]
        self.tried = [self._try(graph, is_first) for graph, is_first in zip(graphs, (True, False))]
        if self.is_of_data:
            self._free_of_inputs(graphs)
        self.wanted = [n for n in range(len(node.outputs)) if node.wants(n)]

    def _try(self, graph: onnx.GraphProto, is_first: bool) -> Tried:
        """Imports a branch tentatively; inside it the condition's value is known."""
        condition = self.node.input(0)
        self.importer.branching[condition] = is_first
        try:
            found = try_block(self.importer, self.node, graph, self.outer, Block())
            names = self._taken_for_granted(found, found.assumed) & self.node.values.given
            return self._with_own(graph, found, names)
        finally:
            del self.importer.branching[condition]

    def _free_of_inputs(self, graphs: Sequence[onnx.GraphProto]) -> None:
        """Imports a branch again if it makes assumptions about inputs' extents that the other
        branch does not."""
        condition = self.node.input(0)
        sides = [{frozenset((a.left, a.right)) for a in tried.assumed} for tried in self.tried]
        of_one = [
            self._taken_for_granted(
                tried, [a for a in tried.assumed if frozenset((a.left, a.right)) not in shared]
            )
            for tried, shared in zip(self.tried, sides[::-1], strict=True)
        ]
        for number, names in enumerate(of_one):
            self.importer.branching[condition] = number == 0
            try:
                self.tried[number] = self._with_own(graphs[number], self.tried[number], names)
            finally:
                del self.importer.branching[condition]

    def _with_own(self, graph: onnx.GraphProto, tried: Tried, names: set[str]) -> Tried:
        """The branch imported again with symbols of its own for `names`, if that succeeds; else as
        before."""
        if not names:
            return tried
        discard(self.importer, self.node, tried)
        block, function = Block(), self.node.rewriter.function
        before = dict(function.assumptions)
        given = self._own(graph, names, block)
        own = {a: None for a in function.assumptions if a not in before}
        found = try_block(self.importer, self.node, graph, self.outer, block, given)
        function.assumptions = before
        if found.is_whole:
            found.assumed = {**own, **found.assumed}
            return found
        discard(self.importer, self.node, found)
        return try_block(self.importer, self.node, graph, self.outer, Block())

    def _taken_for_granted(self, tried: Tried, assumed: Iterable[Assumption]) -> set[str]:
        """Names of symbols defined before a branch about which the branch makes assumptions that
        need not hold when it does not run.
        """
        if not self.is_of_data or not tried.is_whole:
            return set()
        sides = [
            (a.left, a.right) for a in assumed if not is_made_inside(tried.block, (a.left, a.right))
        ]
        return {name for pair in sides for dim in pair for name in dims.symbols(dim)}

    def _own(self, graph: onnx.GraphProto, names: set[str], block: Block) -> dict[str, Held]:
        """The values that a branch reads, with symbols replaced by the branch's own, so that its
        assumptions about them are checked only where it runs.
        """
        inside = replace(self.node, rewriter=Rewriter(self.node.rewriter.function, block))
        own = {name: own_extent(inside, dims.symbol(name)) for name in sorted(names)}
        found: dict[str, Held] = {}
        for name in sorted(captured_by(graph)):
            held = self.outer.find(name)
            if isinstance(held, Value):
                shape = tuple(dims.substitute(extent, own) for extent in held.type.dims)
                if shape != held.type.dims:
                    found[name] = cut(inside, held, shape)
        return found

    def results(self) -> Sequence[Held | None]:
        is_free = self.is_of_data or not any(t.assumed for t in self.tried)
        if all(t.is_whole for t in self.tried) and is_free:
            found = self._as_op()
            if found is not None:
                return found
        if self.compared is None:
            raise self._refusal()
        return self._chosen(self.compared)

    def _as_op(self) -> Sequence[Held | None] | None:
        """The results of the If as an op with blocks; None if the branches' results have no common
        type."""
        node, (then, other) = self.node, self.tried
        assumptions = node.rewriter.function.assumptions
        before = dict(assumptions)
        assumptions.update({**then.assumed, **other.assumed})
        if DimEqualities(assumptions).is_contradictory:
            raise UnsupportedNodeError(
                "its condition is known only when the model runs, and no shapes suit both of its "
                "branches: give the inputs that it depends on a value (input_values, --input-value)"
            )
        yielded, stacks = self._yielded()
        counts: dict[int, list[int]] = {}  # of results: axes along which data decide the extent
        for number, (a, b) in enumerate(list(zip(*yielded, strict=True))):
            is_inside = self._is_made_inside(a.type.dims)
            same = None if is_inside else as_type(node, b, a.type, other.block)
            if same is not None:
                yielded[1][number] = same
                continue
            wide = self._wide_shape(a, b)
            if wide is None:
                node.rewriter.function.assumptions = before
                return None
            counts[number] = [
                d for d, n in enumerate(wide) if not a.type.dims[d] == b.type.dims[d] == n
            ]
            for values, tried in zip(yielded, self.tried, strict=True):
                inside = replace(node, rewriter=Rewriter(node.rewriter.function, tried.block))
                x = values[number]
                values[number] = widened(inside, x, wide)
                values += [dim_value(inside, x.type.dims[d]) for d in counts[number]]
        of_branches = {**before, **then.assumed, **other.assumed}
        node.rewriter.function.assumptions = before
        before.update({a: None for a in assumptions if a not in of_branches})
        for name, tried, values in zip(BRANCHES, self.tried, yielded, strict=True):
            tried.assumed = self._explained(tried.assumed, name)
            finish(node, tried, values)
        condition = node.reshape(node.input(0), ())
        made = insert_op(node, "if", [condition], [then.block, other.block])
        count = sum(len(parts) for parts in stacks)
        given = iter(made.results[count:])
        flat: list[Value] = []
        for position, value in enumerate(made.results[:count]):
            axes = [(d, next(given)) for d in counts.get(position, ())]
            flat.append(narrowed(node, value, axes, "its branches' results") if axes else value)
        results: list[Held | None] = [None] * len(node.outputs)
        rest = iter(flat)
        for number, type in zip(self.wanted, stacks, strict=True):
            parts = [next(rest) for _ in type]
            results[number] = stack_of(parts, type[0]) if type[0] is not None else parts[0]
            held = self.tried[0].values[number]
            if isinstance(held, Value) and held in node.kinds:
                node.kinds[parts[0]] = node.kinds[held]
        return results

    def _yielded(self) -> tuple[list[list[Value]], list[list[StackType | None]]]:
        """(values that each branch yields, with the tensors of sequences; for each value's result
        the type of its stack, None for plain tensors).
        """
        yielded: list[list[Value]] = [[], []]
        stacks: list[list[StackType | None]] = []
        blocks = [tried.block for tried in self.tried]
        for number in self.wanted:
            held = [tried.values[number] for tried in self.tried]
            lists = [v for v in held if v is not None and not isinstance(v, Value)]
            if not lists:
                for values, value in zip(yielded, held, strict=True):
                    assert isinstance(value, Value)
                    values.append(value)
                stacks.append([None])
                continue
            types = [type for v in lists for type in type_of(v)]
            if len(lists) < 2 or any(isinstance(v, TensorList) and v.is_absent for v in lists):
                raise UnsupportedNodeError(
                    "its condition is known only when the model runs, and one branch gives a "
                    "sequence, the other one a tensor or an optional without an element"
                )
            if not types:
                raise UnsupportedNodeError("both of its branches give an empty sequence")
            type = joined(self.node, types, blocks)
            for values, value, block in zip(yielded, lists, blocks, strict=True):
                inside = replace(self.node, rewriter=Rewriter(self.node.rewriter.function, block))
                values += tensors_of(stacked(inside, value, type))
            stacks.append([type] * (1 + bool(type.ragged)))
        return yielded, stacks

    def _is_made_inside(self, extents: Sequence[Dim]) -> bool:
        """Whether dims contain symbols that are defined only in a branch."""
        return any(is_made_inside(tried.block, extents) for tried in self.tried)

    def _wide_shape(self, a: Value, b: Value) -> list[Dim] | None:
        """The dims that both branches' results fit into; None if there are none."""
        if a.type.dtype is not b.type.dtype or a.type.rank != b.type.rank:
            return None
        found: list[Dim] = []
        for pair in zip(a.type.dims, b.type.dims, strict=True):
            if pair[0] == pair[1] and not self._is_made_inside(pair):
                found.append(pair[0])
                continue
            if not self._is_made_inside(pair):
                found.append(dims.maximum(*pair))  # known before either branch runs
                continue
            found.append(dims.maximum(*(room(self.node, extent) for extent in pair)))
        return found

    def _explained(self, assumed: Iterable[Assumption], branch: str) -> dict[Assumption, None]:
        """A branch's assumptions, with the branch's name added to the reason of those that every
        run checks.
        """
        if not self.is_of_data:
            return dict.fromkeys(assumed)
        where = f"{IN_BRANCH}{branch} of If {self.node.label!r}, which data choose)"
        return {
            a
            if IN_BRANCH in a.reason or self._is_given(a)
            else replace(a, reason=f"{a.reason}{where}"): None
            for a in assumed
        }

    def _is_given(self, assumption: Assumption) -> bool:
        return any(is_given(self.node, dim) for dim in (assumption.left, assumption.right))

    def _refusal(self) -> UnsupportedNodeError | CompileError:
        """The error for an If on computed data that cannot be an op."""
        for name, tried in zip(BRANCHES, self.tried, strict=True):
            if tried.error is not None and not self.is_of_data:
                return tried.error
            if tried.error is not None:
                return CompileError(
                    f"{tried.error}; that is in the {name} of If (node {self.node.label!r}), whose "
                    "condition is known only when the model runs: if that branch is not meant to "
                    "run, give the inputs that it depends on a value (input_values, --input-value)"
                )
        first = next(name for name in self.proto.output if name)
        reasons = dict.fromkeys(why for tried in self.tried for why in tried.lacks)
        if reasons or not all(t.is_whole for t in self.tried):
            self.outer.unsupported.extend((first, why) for why in reasons)
            return UnsupportedNodeError("")
        return UnsupportedNodeError(
            "its condition is known only when the model runs, and its branches' results differ in "
            f"type: {self._types()}; give the inputs that it depends on a value (input_values, "
            "--input-value), or let both branches give results of one element type and rank"
        )

    def _types(self) -> str:
        """Text about the first result whose types differ between the branches."""
        for number in self.wanted:
            then, other = (t.values[number] for t in self.tried)
            if isinstance(then, Value) and isinstance(other, Value) and then.type != other.type:
                return f"{then.type} and {other.type}"
        return "they only differ in what they assume"

    def _chosen(self, compared: Comparison) -> Sequence[Held | None]:
        """The results of one branch, imported inline under the assumption that shapes take it."""
        node = self.node
        assumptions = [
            side.assumption(f"If (node {node.label!r}): only its {name} is compiled")
            for side, name in zip((compared, compared.negated()), BRANCHES, strict=True)
        ]
        fit = [
            n
            for n, tried in enumerate(self.tried)
            if tried.is_whole and assumptions[n] is not None and self._has_declared_ranks(tried)
        ]
        if not fit or (len(fit) == 2 and self.is_of_data):
            raise self._refusal()
        if len(fit) == 2:
            fit = [0 if self.importer.choices.take(f"If (node {node.label!r})") else 1]
        (chosen,) = fit
        assumption = assumptions[chosen]
        assert assumption is not None
        taken = self.tried[chosen]
        discard(self.importer, node, self.tried[1 - chosen])
        function = node.rewriter.function
        function.assumptions[assumption] = None
        sides = (assumption.left, assumption.right)
        function.assumptions.update(
            {a: None for a in taken.assumed if (a.left, a.right) not in (sides, sides[::-1])}
        )
        node.rewriter.splice(taken.block)
        return taken.values

    def _has_declared_ranks(self, tried: Tried) -> bool:
        """Whether a branch's results have the ranks that the model declares for the If."""
        ranks = self.outer.ranks
        return all(
            not isinstance(value, Value) or ranks.get(name, value.type.rank) == value.type.rank
            for name, value in zip(self.proto.output, tried.values, strict=False)
        )
