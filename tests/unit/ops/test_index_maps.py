"""What each op record says of index maps, held against its reference on each of its samples.

Operands are seen through permutations, reshapes and narrower dtypes; the op runs on what is really
there, whether that pays or not, and must give what it gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
import pytest

from aot.builder import Builder
from aot.ir.clone import clone_module
from aot.ir.graph import Module, Value
from aot.ir.index_map import IndexMap, Reshape, transposed
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, OpRecord, Sample
from aot.ir.text.printer import print_module
from aot.ir.types import DType, Layout, TensorType
from aot.ir.verifier import verify
from aot.passes.layout.resolve_shapes import carry_out
from tests.support.onward_sweep import Onward
from tests.support.op_samples import draw, each_sample
from tests.support.random_graphs import Array, difference

CASES = [
    pytest.param(record, sample, id=f"{name}-{number}")
    for name, record in sorted(REGISTRY.items())
    if record.propagate is not None
    for number, sample in enumerate(record.samples)
]
# what cannot be pushed through by any permutation of a sample's operands
FOLDED = ("transpose", "copy")
# its weights are constants in programs, which these samples have none of
CONSTANT_WEIGHTS = ("matmul_blocked",)

View = tuple[TensorType, IndexMap]
"""What an operand is seen from, and through which map."""


def seen_from(type: TensorType, perm: Sequence[int]) -> View:
    dims = [type.dims[n] for n in np.argsort(perm)]
    return TensorType(type.dtype, tuple(dims)), transposed(tuple(perm))


def views(sample: Sample) -> Iterator[list[View | None]]:
    """Ways to see a sample's operands: all that can through one permutation, each one alone
    through each, all flattened, and floats from f16."""
    types = sample.operands
    rank = max((t.rank for t in types if t is not None), default=0)
    for perm in list(permutations(range(rank)))[1:12]:
        yield [seen_from(t, perm) if t is not None and t.rank == rank else None for t in types]
    for number, type in enumerate(types):
        if type is None:
            continue
        for perm in list(permutations(range(type.rank)))[1:8]:
            yield [seen_from(type, perm) if n == number else None for n in range(len(types))]
    yield [
        None
        if t is None or t.rank < 2
        else (t.with_dims((t.element_count,)), IndexMap((Reshape(t.dims),)))
        for t in types
    ]
    if any(t is not None and t.dtype is DType.F32 for t in types):
        yield [
            (t.with_dtype(DType.F16), IndexMap()) if t and t.dtype is DType.F32 else None
            for t in types
        ]


def build(
    record: OpRecord, sample: Sample, seen: Sequence[View | None]
) -> tuple[Module, dict[str, Array]]:
    """The op on inputs that it sees through pending changes."""
    b, rng = Builder(), np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    operands: list[Value | None] = []
    for number, type in enumerate(sample.operands):
        if type is None:
            operands.append(None)
            continue
        view = seen[number]
        there, map = view or (type, IndexMap())
        value = b.input(f"x{number}", there)
        with np.errstate(over="ignore"):  # what f16 does not hold is infinite
            inputs[f"x{number}"] = draw(there, sample.low, sample.high, rng)
        if view is not None:
            value = b.op(
                "pending_shape_change", value, map=map.to_attr(), dtype=type.dtype,
                layout=type.layout or Layout(),
            )  # fmt: skip
        operands.append(value)
    results = b.op(record.name, *operands, **dict(sample.attrs))
    for number, value in enumerate(results if isinstance(results, (list, tuple)) else [results]):
        b.output(f"y{number}", value)
    return b.module(), inputs


@each_sample(CASES)
def test_an_op_gives_the_same_on_what_is_really_there(record: OpRecord, sample: Sample) -> None:
    for seen in views(sample):
        if not any(seen):
            continue
        module, inputs = build(record, sample, seen)
        before = clone_module(module)
        carry_out(Onward(module.main).run())
        verify(module, is_resolved=True)
        expected = run(before.main, inputs)
        problem = difference(before.main, inputs, expected, run(module.main, inputs))
        assert not problem, f"{problem}\n{print_module(before)}\n{print_module(module)}"


@pytest.mark.parametrize(
    "name", sorted({p.values[0].name for p in CASES} - {*FOLDED, *CONSTANT_WEIGHTS})
)
def test_every_rule_takes_some_map_in(name: str) -> None:
    """A rule that always refuses would pass the test above."""
    record = REGISTRY[name]
    for sample in record.samples:
        for seen in views(sample):
            if not any(view is not None and view[1].perm for view in seen):
                continue
            module, _ = build(record, sample, seen)
            sweep = Onward(module.main).run()
            op = next(op for op in module.main.block if op.record is record)
            propagated = sweep.decisions[op].propagated
            if propagated is not None and not propagated.is_removed:
                return
    raise AssertionError(f"{name} takes in no permutation of any sample")


@pytest.mark.parametrize("name", FOLDED)
def test_ops_that_only_move_become_part_of_the_map(name: str) -> None:
    record = REGISTRY[name]
    module, _ = build(record, record.samples[0], next(views(record.samples[0])))
    op = next(op for op in module.main.block if op.record is record)
    decision = Onward(module.main).run().decisions[op]
    assert decision.propagated is not None and decision.propagated.is_removed
