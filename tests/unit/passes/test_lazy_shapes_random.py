"""Random graphs with random rewrites: lazy, eager and the reference interpreter agree.

Values are computed in another order of dims, under other dims, in another layout or in f16, and
seen as they were. The program with everything pending is what both ways of telling must keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from aot.ir.clone import clone_module
from aot.ir.compare import modules_equal
from aot.ir.dims import product
from aot.ir.graph import Module, Op
from aot.ir.index_map import IndexMap, Reshape, transposed
from aot.ir.interpreter.interpreter import run
from aot.ir.record import Kind
from aot.ir.rewriter import Rewriter
from aot.ir.text.printer import print_module
from aot.ir.types import DType, Layout, TensorType
from aot.ir.verifier import verify
from aot.ops.elementwise import CAST
from aot.ops.movement import RESHAPE, TRANSPOSE
from aot.passes.base import PassContext, run_passes
from aot.passes.layout.defer_transposes import DEFER_TRANSPOSES
from aot.passes.layout.eager_shapes import follow_eagerly
from aot.passes.layout.resolve_shapes import RESOLVE_SHAPES, carry_out, resolve
from tests.support.graphs import MODEL_KINDS, modules, random_inputs
from tests.support.onward_sweep import Onward
from tests.support.random_graphs import Array, Graph, difference, graphs

SETTINGS = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Change:
    """Attributes:
    place: which op, counted anew after each change.
    kind: what becomes of its first result.
    seed: of a random order of dims.
    """

    place: int
    kind: str
    seed: int


CHANGES = st.lists(
    st.builds(
        Change,
        st.integers(0, 40),
        st.sampled_from(("turn", "turn", "flatten", "narrow", "relay")),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=6,
)


def apply(module: Module, change: Change) -> None:
    """Makes the change, if the op allows it, and leaves it pending."""
    ops = [op for op in module.main.block if op.results and op.record.kind is not Kind.STRUCTURE]
    if not ops:
        return
    op = ops[change.place % len(ops)]
    value, type = op.results[0], op.results[0].type
    assert op.next is not None
    at = Rewriter(module.main).at(op.next)
    order = tuple(int(n) for n in np.random.default_rng(change.seed).permutation(type.rank))
    if change.kind == "turn":
        fresh = at.create(TRANSPOSE, [value], {"perm": order}).result
        back = transposed(tuple(int(n) for n in np.argsort(order)))
        Rewriter(module.main).replace_lazily(value, fresh, back)
    elif change.kind == "flatten":
        fresh = at.create(RESHAPE, [value], {"shape": (product(type.dims),)}).result
        map = IndexMap((Reshape(type.dims),)) if fresh.type.dims != type.dims else IndexMap()
        Rewriter(module.main).replace_lazily(value, fresh, map)
    elif change.kind == "narrow" and type.dtype is DType.F32:
        fresh = at.create(CAST, [value], {"to": DType.F16}).result
        Rewriter(module.main).replace_lazily(value, fresh)
    elif change.kind == "relay" and type.layout is None and list(order) != sorted(order):
        relay(module, op, TensorType(type.dtype, type.dims, Layout(order=order)))


def relay(module: Module, op: Op, type: TensorType) -> None:
    """Lets an op write its only result in another layout."""
    if len(op.results) != 1 or op.record.compute is None or op.record.kind is Kind.VIEW:
        return
    fresh = Rewriter(module.main).at(op).insert(Op(op.record, op.operands, op.attrs, [type]))
    Rewriter(module.main).replace_lazily(op.result, fresh.result)
    Rewriter(module.main).erase(op)


def check(module: Module, changes: list[Change], inputs: Mapping[str, Array]) -> None:
    lazy, eager, onward = (clone_module(module) for _ in range(3))
    follow_eagerly(eager)
    for change in changes:
        for made in (lazy, eager, onward):
            apply(made, change)
    note(print_module(lazy))
    verify(lazy)
    pending = clone_module(lazy)
    resolve(lazy.main)
    resolve(eager.main)
    carry_out(Onward(onward.main).run())
    note(print_module(lazy))
    for made in (lazy, eager, onward):
        verify(made, is_resolved=True)
    assert modules_equal(lazy, eager), print_module(eager)
    expected = run(pending.main, inputs)
    for made in (lazy, onward):
        problem = difference(pending.main, inputs, expected, run(made.main, inputs))
        assert not problem, f"{problem}\n{print_module(made)}"


@SETTINGS
@given(graphs(max_ops=10), CHANGES, st.integers(0, 9))
def test_ops_of_all_families(graph: Graph, changes: list[Change], seed: int) -> None:
    check(graph.module, changes, graph.inputs(seed))


@SETTINGS
@given(modules(max_ops=14, kinds=MODEL_KINDS), CHANGES)
def test_symbolic_dims(module: Module, changes: list[Change]) -> None:
    check(module, changes, random_inputs(module.main))


@SETTINGS
@given(graphs(max_ops=12), st.integers(0, 9), st.lists(st.integers(0, 40), max_size=6))
def test_deferring_transposes(graph: Graph, seed: int, places: list[int]) -> None:
    """With transposes and their inverses strewn in, so that webs form."""
    module = graph.module
    for number, place in enumerate(places):
        ops = [op for op in module.main.block if len(op.results) == 1]
        if not ops:
            break
        op = ops[place % len(ops)]
        order = np.random.default_rng(number).permutation(op.result.type.rank).tolist()
        assert op.next is not None
        at = Rewriter(module.main).at(op.next)
        there = at.create(TRANSPOSE, [op.result], {"perm": tuple(order)})
        back = tuple(int(n) for n in np.argsort(order))
        again = at.create(TRANSPOSE, [there.result], {"perm": back})
        for user, index in list(op.result.uses):
            if user is not there:
                Rewriter(module.main).set_operand(user, index, again.result)
    before, inputs = clone_module(module), graph.inputs(seed)
    note(print_module(before))
    run_passes(module, (DEFER_TRANSPOSES, RESOLVE_SHAPES), PassContext())
    note(print_module(module))
    verify(module, is_resolved=True)
    expected = run(before.main, inputs)
    problem = difference(before.main, inputs, expected, run(module.main, inputs))
    assert not problem, problem
    count = [sum(op.record is TRANSPOSE for op in m.main.walk()) for m in (before, module)]
    assert count[1] <= count[0]
