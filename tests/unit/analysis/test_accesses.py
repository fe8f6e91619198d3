"""Reads as analyses are told them: those that `compute` makes, found once for equal calls."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.analysis.accesses import Accesses, Read, Subscript, accesses_of, accesses_of_call
from aot.analysis.control import control_ops
from aot.analysis.renaming import permutation_of
from aot.builder import Builder
from aot.errors import InternalError
from aot.ir import expr as e
from aot.ir.dims import evaluate, symbol
from aot.ir.graph import Module, Op
from aot.ir.record import Call, Compute, Kind, Sample
from aot.ir.types import Array, DType, TensorType
from aot.ops import REGISTRY, OpRecord
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.join_regions import join_regions
from aot.passes.fusion.tie_operands import tie_operands
from aot.target import selection as targets
from tests.support.op_samples import draw_all, each_sample, evaluate_compute

SAMPLES = [
    pytest.param(record, sample, id=f"{record.name}-{number}")
    for record in REGISTRY.values()
    if record.compute is not None
    for number, sample in enumerate(record.samples)
]
Elements = set[tuple[int, ...]]  # the result element's number, and indices of an operand's element


def number_of(dim: object, symbols: dict[str, int]) -> int:
    return evaluate(dim, symbols)  # type: ignore[arg-type]


def value_of(subscript: Subscript, points: Array, symbols: dict[str, int]) -> Array:
    """The subscript at points, one a column; -1 everywhere where it is not affine."""
    if subscript.constant is None:
        return np.full(points.shape[1:], -1)
    steps = [number_of(step, symbols) for step in subscript.steps]
    start = number_of(subscript.constant, symbols)
    return np.asarray(start + np.tensordot(np.array(steps, int), points, 1))


def predicted(accesses: Accesses, read: Read, symbols: dict[str, int]) -> Elements:
    """What a read touches; index -1 is any."""
    extents = [number_of(d, symbols) for d in accesses.extents]
    own = [*range(accesses.rank), *read.axes]
    grid = np.array(list(product(*(range(extents[v]) for v in own))), int).T
    grid = grid.reshape(len(own), -1 if own else 1)
    points = np.zeros((len(extents), grid.shape[1]), int)
    points[own] = grid
    holds = np.ones(points.shape[1], bool)
    for condition in read.conditions:
        holds &= (value_of(condition, points, symbols) >= 0) | (not condition.is_affine)
    shape = extents[: accesses.rank]
    flat = np.zeros(points.shape[1], int)
    for index, extent in zip(points[: accesses.rank], shape, strict=True):
        flat = flat * extent + index
    at = [value_of(s, points, symbols) for s in read.subscripts]
    return set(zip(*(a[holds].tolist() for a in (flat, *at)), strict=True))


def observed(
    call: Call, result: int, inputs: list[Array | None], symbols: dict[str, int]
) -> dict[int, Elements]:
    """What evaluating one result of a call reads of each operand."""
    found: dict[int, Elements] = {}
    shape = tuple(number_of(d, symbols) for d in call.result_types[result].dims)
    count = int(np.prod(shape))

    def watch(load: e.Load, at: list[Array], guard: Array) -> None:
        flat = np.arange(count).reshape(shape)
        parts = np.broadcast_arrays(flat, np.asarray(guard), *at)
        there = parts[1].ravel()
        columns = [parts[0], *parts[2:]]
        found.setdefault(load.source, set()).update(
            zip(*(a.ravel()[there].tolist() for a in columns), strict=True)
        )

    assert call.record.compute is not None
    compute = call.record.compute(call)[result]
    record = dataclasses.replace(call.record, compute=lambda _: [compute])
    one = dataclasses.replace(call, record=record, result_types=(call.result_types[result],))
    evaluate_compute(one, inputs, symbols, watch)
    return found


def matches(found: Elements, read: Elements) -> Elements:
    """The elements found that a read with any-indices covers."""
    masks = {tuple(i == -1 for i in element) for element in read}
    return {
        element
        for element in found
        if any(
            tuple(-1 if m else i for i, m in zip(element, mask, strict=True)) in read
            for mask in masks
        )
    }


def is_exact(reads: list[Read]) -> bool:
    return all(r.is_affine and all(c.is_affine for c in r.conditions) for r in reads)


def with_symbols(type: TensorType | None) -> TensorType | None:
    if type is None:
        return None
    dims = tuple(symbol(f"n{d}") if d > 1 else d for d in type.shape)
    return TensorType(type.dtype, dims, type.layout)


def check(call: Call, inputs: list[Array | None], symbols: dict[str, int]) -> None:
    """Whether the reads told are those made: all of them, and no others where all is affine."""
    for number, accesses in enumerate(accesses_of_call(call)):
        found = observed(call, number, inputs, symbols)
        assert set(found) <= {read.operand for read in accesses.reads}
        for operand, made in found.items():
            reads = list(accesses.of(operand))
            told = [predicted(accesses, read, symbols) for read in reads]
            assert set().union(*(matches(made, elements) for elements in told)) == made
            if is_exact(reads):
                assert set().union(*told) == made


@each_sample(SAMPLES)
def test_reads_are_those_that_compute_makes(record: OpRecord, sample: Sample) -> None:
    inputs = draw_all(sample, seed=5)
    check(record.call(sample.operands, sample.attrs), inputs, {})
    symbols = {f"n{d}": d for t in sample.operands if t is not None for d in t.shape}
    check(record.call(list(map(with_symbols, sample.operands)), sample.attrs), inputs, symbols)


@each_sample(SAMPLES)
def test_results_change_only_with_what_they_read(record: OpRecord, sample: Sample) -> None:
    """The reference knows nothing of `compute`."""
    call = record.call(sample.operands, sample.attrs)
    inputs = draw_all(sample, seed=6)
    assert record.reference is not None
    before = record.reference(call, inputs)
    rng = np.random.default_rng(7)
    for operand, array in enumerate(inputs):
        if array is None or array.size == 0:
            continue
        for flat in rng.integers(0, array.size, 6):
            at = np.unravel_index(flat, array.shape)
            changed = [None if a is None else a.copy() for a in inputs]
            other = changed[operand]
            assert other is not None
            other[at] = not other[at] if other.dtype == bool else other[at] + 1
            after = record.reference(call, changed)
            for accesses, old, new in zip(accesses_of_call(call), before, after, strict=True):
                differs = {(int(i), *map(int, at)) for i in np.flatnonzero(old != new)}
                told = (predicted(accesses, r, {}) for r in accesses.of(operand))
                assert set().union(*(matches(differs, elements) for elements in told)) == differs


MOVING = [case for case in SAMPLES if case.values[0].kind is Kind.MOVEMENT]


@each_sample(MOVING)
def test_an_element_is_the_operands(record: OpRecord, sample: Sample) -> None:
    call = record.call(sample.operands, sample.attrs)
    (accesses,) = accesses_of_call(call)
    element = accesses.element
    if element is None or not is_exact([element]):
        return
    inputs = draw_all(sample, seed=8)
    assert record.reference is not None
    (result,) = record.reference(call, inputs)
    source = inputs[element.operand]
    assert source is not None
    for flat, *at in predicted(accesses, element, {}):
        assert result.ravel()[flat] == source[tuple(at)]


def test_what_is_not_affine_follows_from_data_or_divides() -> None:
    """Every other op of the table is read exactly, conditions and all."""
    by_data: set[str] = set()
    others: set[str] = set()
    for case in SAMPLES:
        record, sample = case.values
        for accesses in accesses_of_call(record.call(sample.operands, sample.attrs)):
            for read in accesses.reads:
                for s in (*read.subscripts, *read.conditions):
                    if not s.is_affine:
                        (by_data if s.has_data else others).add(record.name)
    chosen = {"gather", "gather_blocked", "gather_elements", "gather_nd", "put_slice"}
    assert by_data == chosen | {"grid_sample", "resample", "roi_align", "table_lookup"}
    # groups of channels, overlapping blocks and tiles, mirrored borders, dims that don't divide
    blocked = {"gather_blocked", "matmul_blocked"}
    convolutions = {"conv", "conv_bf16", "conv_integer", "winograd_inputs", "winograd_outputs"}
    assert others == blocked | convolutions | {"col2im", "pad", "reshape"}


def subscript_of(index: e.Expr, variables: tuple[e.Var, ...], rank: int) -> Subscript:
    """What is told of a load at `index` by a made-up record."""
    value: e.Expr = e.Load(0, (index,), DType.F32)
    axes = tuple((v, 3) for v in variables[rank:])
    if axes:
        value = e.Reduce("sum", axes, value, DType.F32)
    record = dataclasses.replace(
        REGISTRY["relu"], compute=lambda _: [Compute(variables[:rank], value)]
    )
    type = TensorType(DType.F32, (3,) * rank)
    (accesses,) = accesses_of_call(Call(record, (type,), {}, result_types=(type,)))
    (read,) = accesses.reads
    assert read.axes == tuple(range(rank, len(variables)))
    return read.subscripts[0]


@st.composite
def index_expressions(draw: st.DrawFn, variables: tuple[e.Var, ...]) -> e.Expr:
    symbols = st.sampled_from(("n", "m")).map(lambda n: e.index(symbol(n)))
    leaves = st.one_of(st.sampled_from(variables), st.integers(-3, 3).map(e.index), symbols)
    divisors = st.one_of(st.sampled_from(variables), st.integers(1, 3).map(e.index), symbols)
    ops = st.sampled_from(("add", "sub", "mul", "add", "sub", "min"))

    def combined(inner: st.SearchStrategy[e.Expr]) -> st.SearchStrategy[e.Expr]:
        sums = st.builds(e.binary, ops, inner, inner)
        return st.one_of(sums, sums, st.builds(e.binary, st.just("floordiv"), inner, divisors))

    made: e.Expr = draw(st.recursive(leaves, combined, max_leaves=6))
    return made


def value_at(x: e.Expr, values: dict[e.Var, int], symbols: dict[str, int]) -> int:
    if isinstance(x, e.Var):
        return values[x]
    known = e.dim_of(x)
    if known is not None:
        return number_of(known, symbols)
    assert isinstance(x, e.Binary)
    a, b = value_at(x.a, values, symbols), value_at(x.b, values, symbols)
    table = {"add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b)}
    return (a // b if b else 0) if x.op == "floordiv" else table[x.op]


VARIABLES = tuple(e.Var(name) for name in "ijk")


@settings(max_examples=60, deadline=None)
@given(index_expressions(VARIABLES), st.integers(0, 3))
def test_a_subscript_is_its_index(index: e.Expr, rank: int) -> None:
    """Affine ones are at every point what the index is; the steps of others hold one by one."""
    found = subscript_of(index, VARIABLES, rank)
    symbols = {"n": 5, "m": 2}

    def at(point: tuple[int, ...]) -> int:
        return value_at(index, dict(zip(VARIABLES, point, strict=True)), symbols)

    for point in product(range(3), repeat=3):
        if found.constant is not None:
            steps = [number_of(s, symbols) for s in found.steps]
            told = number_of(found.constant, symbols) + int(np.dot(steps, point))
            assert told == at(point)
        for n, step in enumerate(found.steps):
            if step is not None:
                after = tuple(i + (k == n) for k, i in enumerate(point))
                assert at(after) - at(point) == number_of(step, symbols)


@pytest.mark.parametrize(
    ("index", "variable", "is_constant"),
    [
        (VARIABLES[1], 1, False),
        (e.add(VARIABLES[1], e.index(0)), 1, False),
        (e.add(VARIABLES[1], e.index(1)), None, False),
        (e.mul(VARIABLES[1], e.index(2)), None, False),
        (e.add(VARIABLES[0], VARIABLES[1]), None, False),
        (e.sub(VARIABLES[2], VARIABLES[2]), None, True),
        (e.index(symbol("n")), None, True),
        (e.binary("floordiv", VARIABLES[0], e.index(2)), None, False),
    ],
)
def test_variables_and_constants(index: e.Expr, variable: int | None, is_constant: bool) -> None:
    found = subscript_of(index, VARIABLES, 2)
    assert (found.variable, found.is_constant) == (variable, is_constant)


def one(text: str, name: str, **attrs: object) -> Op:
    b = Builder()
    b.output("y", b.op(name, b.input("x", text), **attrs))
    return next(op for op in b.module().main.walk() if op.name == name)


def test_equal_calls_are_read_once_and_others_apart() -> None:
    first = accesses_of(one("f32[3, 5]", "transpose", perm=(1, 0)))
    assert accesses_of(one("f32[3, 5]", "transpose", perm=(1, 0))) is first
    for other in (
        one("f32[5, 3]", "transpose", perm=(1, 0)),
        one("f32[3, 5]", "transpose", perm=(0, 1)),
        one("f16[3, 5]", "transpose", perm=(1, 0)),
        one("f32[N, 5]", "transpose", perm=(1, 0)),
    ):
        assert accesses_of(other) is not first
    keep, drop = (
        accesses_of(one("f32[1, 5]", "reduce_sum", axes=(0,), keepdims=k)) for k in (True, False)
    )
    assert (keep[0].rank, drop[0].rank) == (2, 1)


def test_a_changed_op_is_read_anew() -> None:
    op = one("f32[3, 3]", "transpose", perm=(0, 1))
    assert permutation_of(op) == (0, 1)
    op.attrs["perm"] = (1, 0)
    assert permutation_of(op) == (1, 0)


def test_attributes_that_are_equal_and_mean_other_things_are_apart() -> None:
    record = dataclasses.replace(REGISTRY["relu"])
    type = TensorType(DType.F32, (3,))
    calls = [Call(record, (type,), {"a": value}, result_types=(type,)) for value in (1, 1.0, True)]
    assert len({id(accesses_of_call(call)) for call in calls}) == 3


def test_hand_written_kernels_tell_no_reads() -> None:
    record = REGISTRY["attention"]
    call = record.call(record.samples[0].operands, record.samples[0].attrs)
    with pytest.raises(InternalError, match="^attention has no compute, so that its reads"):
        accesses_of_call(call)


def test_a_slice_is_no_permutation() -> None:
    """From the start, with step 1, it has the indices of one; but it leaves elements out."""
    attrs = {"starts": (0, 0), "steps": (1, 1)}
    assert permutation_of(one("f32[3, 5]", "slice", stops=(3, 4), **attrs)) is None
    assert permutation_of(one("f32[3, 5]", "slice", stops=(3, 5), **attrs)) == (0, 1)
    assert permutation_of(one("f32[3, 1, 5]", "transpose", perm=(2, 0, 1))) == (2, 0, 1)
    assert permutation_of(one("f32[3, 1]", "broadcast_to", shape=(3, 4))) is None


# how often `compute` is evaluated


@pytest.fixture
def evaluations() -> Iterator[Counter[tuple[object, ...]]]:
    """Counts evaluations of every record's `compute`, by what the record sees of the call."""
    counts: Counter[tuple[object, ...]] = Counter()
    kept = [(record, record.compute) for record in REGISTRY.values()]

    def counting(record: OpRecord, compute: Callable[[Call], Sequence[Compute]]) -> None:
        def counted(call: Call) -> Sequence[Compute]:
            attrs = tuple(sorted((k, repr(v)) for k, v in call.attrs.items()))
            counts[record.name, call.operands, attrs, call.result_types] += 1
            return compute(call)

        object.__setattr__(record, "compute", counted)

    for record, compute in kept:
        if compute is not None:
            counting(record, compute)
    yield counts
    for record, compute in kept:
        object.__setattr__(record, "compute", compute)


def layers(count: int) -> Module:
    """Equal layers of a small model: a convolution, a shuffle, pools, products with softmax."""
    b = Builder()
    x = b.input("x", "f32[1, 4, 6, 6]")
    w = b.input("w", "f32[4, 4, 3, 3]")
    p = b.input("p", "f32[6, 6]")
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
    for _ in range(count):
        y = b.op("relu", b.op("conv", x, w, group=1, **window))
        turned = b.op("transpose", y, perm=(0, 2, 1, 3))
        scores = b.op("softmax", b.op("matmul", turned, p), axis=3)
        pooled = b.op("max_pool", scores, kernel=(3, 3), **window)
        x = b.op("add", b.op("transpose", pooled, perm=(0, 2, 1, 3)), y)
    b.output("y", x)
    return b.module()


@pytest.mark.parametrize("target", ["x86-64-v3", "vulkan-1.1"])
def test_compute_is_evaluated_once_a_signature(
    evaluations: Counter[tuple[object, ...]], target: str
) -> None:
    """However many ops are alike, and however often fusing, joining and tying ask."""
    model = layers(4).main
    fuse(model)
    join_regions(model, targets.load(target))
    tie_operands(model)
    assert sum(op.name == "region" for op in control_ops(model))
    assert evaluations
    assert max(evaluations.values()) == 1


@pytest.mark.parametrize(
    ("target", "rows", "regions"),
    [
        ("x86-64-v2", 1, 1),
        ("x86-64-v2", 64, 2),
        ("x86-64-v3", 64, 1),
        ("vulkan-1.1", 1, 1),
        ("vulkan-1.1", 64, 2),
    ],
)
def test_weights_are_widened_in_loads_where_that_is_cheap(
    target: str, rows: int, regions: int
) -> None:
    """On a CPU with an instruction for it; elsewhere not once a tile of rows."""
    b = Builder()
    weight = b.constant(np.ones((8, 16), np.float16))
    x = b.input("x", f"f32[{rows}, 8]")
    b.output("y", b.op("matmul", x, b.op("cast", weight, to=DType.F32)))
    main = b.module().main
    fuse(main, target=targets.load(target))
    assert sum(op.name == "region" for op in control_ops(main)) == regions
