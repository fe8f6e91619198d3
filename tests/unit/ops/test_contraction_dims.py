"""What contractions say of their dims, held against what their `compute` does, for every record;
and an op that no file of the compiler names, which all of it serves as it serves the others."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

import aot
from aot.analysis.cost.plan import Plan, plan, weight_layouts
from aot.frontends.text import import_text
from aot.ir import expr
from aot.ir.contraction import ContractionDims, Factor, Scales, Window
from aot.ir.dims import Dim
from aot.ir.expr import Const, Expr, Load, Reduce
from aot.ir.record import Call, Compute, Kind, Operand, OpRecord, Sample, register
from aot.ir.schedule import Schedule
from aot.ir.types import DType, TensorType
from aot.ops import REGISTRY
from aot.ops.elementwise import result_indices
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.merge_siblings import MERGE_SIBLINGS
from aot.passes.simplify.algebra import ALGEBRA
from aot.passes.simplify.dce import DCE
from aot.passes.simplify.fold_constants import FOLD_CONSTANTS
from aot.passes.simplify.rewriting import constant_of
from aot.target import selection as targets

CASES = [
    pytest.param(record, sample, id=f"{record.name}-{number}")
    for record in REGISTRY.values()
    if record.kind is Kind.CONTRACTION
    for number, sample in enumerate(record.samples)
]


def parts(call: Call) -> tuple[ContractionDims, Compute, Reduce, Load, Load]:
    """The dims of a call, and the sum and both loads of what it computes."""
    assert call.record.compute is not None
    found = call.contraction
    assert found is not None
    (compute,) = call.record.compute(call)
    (total,) = (e for e in expr.nodes(compute.value) if isinstance(e, Reduce))
    loads = {load.source: load for load in expr.loads(total)}
    return found, compute, total, loads[found.left.operand], loads[found.right.operand]


def offset(index: Expr) -> Dim | None:
    """What an index is where all variables are 0."""
    free = dict.fromkeys(expr.free_vars(index), expr.index(0))
    return expr.dim_of(expr.substitute(index, free))


def test_contractions_say_what_their_dims_do() -> None:
    for record in REGISTRY.values():
        assert (record.contraction is not None) == (record.kind is Kind.CONTRACTION), record.name


@pytest.mark.parametrize(("record", "sample"), CASES)
def test_each_dim_has_one_part(record: OpRecord, sample: Sample) -> None:
    found, _, total, *_ = parts(record.call(sample.operands, sample.attrs))
    for factor in (found.left, found.right):
        named = [*factor.batch, *factor.own, factor.summed, *factor.taps]
        if factor is found.left:
            named += [w.axis for w in found.windows if w.axis not in factor.own]
        assert sorted(named) == list(range(factor.type.rank))
    assert found.right.taps == tuple(w.tap for w in found.windows)
    assert {w.axis for w in found.windows} <= set(found.rows)
    count = found.result.element_count
    assert prod((found.m, found.n, found.batch, found.groups)) == count
    assert found.k == prod(extent for _, extent in total.axes)
    assert total.dtype is found.accumulator


@pytest.mark.parametrize(
    ("record", "sample"),
    # weights in blocks are words that are decoded, which no index of a load is linear in
    [case for case in CASES if case.values[0].name != "matmul_blocked"],  # type: ignore[union-attr]
)
def test_loads_go_along_the_dims_that_are_named(record: OpRecord, sample: Sample) -> None:
    found, compute, total, left, right = parts(record.call(sample.operands, sample.attrs))
    assert left.dtype is found.left.dtype
    assert right.dtype is found.right.dtype
    wide = {d for d, extent in enumerate(found.result.dims) if extent != 1}
    in_left, in_right = (
        {compute.indices.index(v) for v in expr.free_vars(load) if v in compute.indices}
        for load in (left, right)
    )
    assert in_right & set(found.rows) == set()
    assert found.column in in_right
    assert found.groups != 1 or found.column not in in_left
    assert set(found.rows) & wide <= in_left
    # the columns, and what is summed, are the dims that are said to be
    column = compute.indices[found.column]
    assert [expr.coefficient(i, column) for i in right.indices] == [
        1 if d in found.right.own else 0 for d in range(found.right.type.rank)
    ]
    channel = total.axes[0][0]
    assert expr.coefficient(left.indices[found.left.summed], channel) == 1
    assert expr.coefficient(right.indices[found.right.summed], channel) == 1


@pytest.mark.parametrize(("record", "sample"), CASES)
def test_windows_are_where_loads_go(record: OpRecord, sample: Sample) -> None:
    found, compute, total, left, right = parts(record.call(sample.operands, sample.attrs))
    for window, (tap, extent) in zip(found.windows, total.axes[1:], strict=True):
        index = left.indices[window.axis]
        assert extent == window.kernel
        assert expr.coefficient(index, compute.indices[window.axis]) == window.stride
        assert expr.coefficient(index, tap) == window.dilation
        assert expr.coefficient(right.indices[window.tap], tap) == 1
        assert offset(index) == -window.begin
    assert (left.guard is not None) == found.is_padded
    if left.guard is not None:
        assert isinstance(left.other, Const)
        assert left.other.value == found.pad_value


# an op that sums products of two dtypes in a third, of operands that lie otherwise than any other's

I8, U8, I32, F32 = DType.I8, DType.U8, DType.I32, DType.F32


def _blend_dims(call: Call) -> ContractionDims:
    left, right = call.operand(0), call.operand(1)
    return ContractionDims(
        left=Factor(0, left, batch=(), own=(1,), summed=0),
        right=Factor(1, right, batch=(), own=(0,), summed=1),
        result=call.result_types[0],
        rows=(0,),
        column=1,
        accumulator=call.result_types[0].dtype,
        bias=2,
    )


def _blend_compute(call: Call) -> list[Compute]:
    left, right, wide = call.operand(0), call.operand(1), call.result_types[0].dtype
    row, column = indices = result_indices(2)
    k = expr.Var("k")
    a = expr.cast(Load(0, (k, row), left.dtype), wide)
    b = expr.cast(Load(1, (column, k), right.dtype), wide)
    total: Expr = Reduce("sum", ((k, _blend_dims(call).k),), expr.mul(a, b), wide)
    if call.has(2):
        total = expr.add(total, Load(2, (column,), wide))
    return [Compute(indices, total)]


def _wide(dtype: DType) -> DType:
    return dtype if dtype.is_float else I32


def _blend_reference(call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
    wide = call.result_types[0].dtype.numpy
    a, b, *bias = (x.astype(wide) for x in inputs if x is not None)
    return [a.T @ b.T + (bias[0] if bias else wide.type(0))]


BLEND = OpRecord(
    name="test_blend",
    summary="Sum over k of a [k, row] times b [column, k], plus one addend a column.",
    operands=(
        Operand("a", frozenset({I8, F32})),
        Operand("b", frozenset({U8, F32})),
        Operand("bias", frozenset({I32, F32}), "optional"),
    ),
    infer=lambda call: [
        TensorType(_wide(call.operand(0).dtype), (call.operand(0).dims[1], call.operand(1).dims[0]))
    ],
    reference=_blend_reference,
    compute=_blend_compute,
    contraction=_blend_dims,
    kind=Kind.CONTRACTION,
)


@pytest.fixture
def blend() -> Iterator[None]:
    register(BLEND)
    yield
    del REGISTRY[BLEND.name]


def call_blend(m: int, k: int, n: int, a: DType = I8, b: DType = U8) -> Call:
    return BLEND.call([TensorType(a, (k, m)), TensorType(b, (n, k))], {})


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic", "wasm32", "vulkan-1.1"])
def test_the_plan_knows_an_op_by_its_dims(target: str) -> None:
    """A product of bytes that sums in i32 has the tile of one of f32, and panels along its
    columns, wherever these are."""
    chosen = targets.load(target)
    made = plan(call_blend(60, 24, 40), chosen)
    assert made == Plan(
        Schedule.CONTRACTION,
        made.lanes,
        made.rows,
        made.columns,
        1,
        weight_layouts(call_blend(60, 24, 40), chosen)[1],
        2 * 60 * 24 * 40,
    )
    product = REGISTRY["matmul"].call([TensorType(F32, (60, 24)), TensorType(F32, (24, 40))], {})
    assert (made.lanes, made.columns) == (
        plan(product, chosen).lanes,
        plan(product, chosen).columns,
    )
    assert made.weight_layout is not None
    assert str(made.weight_layout) == f"{{splits=0/{chosen.panel} order=0:1:2}}"


BYTES = """
func @main(%a: i8[24, N], %b: u8[40, 24]) -> ("y") {
  %1 = test_blend(%a, %b) : i32[N, 40]
  return(%1)
}
"""


@pytest.mark.usefixtures("blend")
def test_bytes_are_summed_on_the_host() -> None:
    random = np.random.default_rng(1)
    b = random.integers(0, 256, (40, 24)).astype(np.uint8)
    with aot.load(aot.compile(BYTES.encode(), input_values={"b": b})) as program:
        for n in (1, 3, 17):
            a = random.integers(-128, 128, (24, n)).astype(np.int8)
            wanted = a.T.astype(np.int32) @ b.T.astype(np.int32)
            np.testing.assert_array_equal(program({"a": a})["y"], wanted)


SIBLINGS = """
func @main(%a: f32[2, N]) -> ("y", "z") {
  %1 = constant {value = f32[1, 2] <1.0, 2.0>} : f32[1, 2]
  %2 = test_blend(%a, %1) : f32[N, 1]
  %3 = constant {value = f32[1] <3.0>} : f32[1]
  %4 = mul(%2, %3) : f32[N, 1]
  %5 = constant {value = f32[1] <0.5>} : f32[1]
  %6 = add(%4, %5) : f32[N, 1]
  %7 = relu(%6) : f32[N, 1]
  %8 = transpose(%7) {perm = [1, 0]} : f32[1, N]
  %9 = constant {value = f32[2, 2] <3.0, 4.0, 5.0, 6.0>} : f32[2, 2]
  %10 = constant {value = f32[2] <0.25, -0.25>} : f32[2]
  %11 = test_blend(%a, %9, %10) : f32[N, 2]
  %12 = relu(%11) : f32[N, 2]
  %13 = transpose(%12) {perm = [1, 0]} : f32[2, N]
  return(%8, %13)
}
"""


@pytest.mark.usefixtures("blend")
def test_scales_go_into_it_and_siblings_are_one() -> None:
    module = import_text(SIBLINGS)
    run_passes(module, (ALGEBRA, FOLD_CONSTANTS, DCE, MERGE_SIBLINGS, DCE), PassContext())
    names = [op.name for op in module.main.walk()]
    assert names.count("test_blend") == 1
    assert "mul" not in names
    assert "add" not in names
    (op,) = (op for op in module.main.walk() if op.name == "test_blend")
    weight, bias = constant_of(op.operands[1]), constant_of(op.operands[2])
    assert weight is not None
    assert bias is not None
    np.testing.assert_array_equal(weight.logical, [[3, 6], [3, 4], [5, 6]])
    np.testing.assert_array_equal(bias.logical, [0.5, 0.25, -0.25])
    a = np.array([[1, -1, 2], [3, 4, -5]], np.float32)
    with aot.load(aot.compile(SIBLINGS.encode())) as program:
        found = program({"a": a})
    np.testing.assert_array_equal(found["y"], np.maximum([[3, 6]] @ a + 0.5, 0))
    other = np.array([[3, 4], [5, 6]]) @ a + [[0.25], [-0.25]]
    np.testing.assert_array_equal(found["z"], np.maximum(other, 0))


def test_dims_hold_what_integer_kernels_need() -> None:
    """Two dtypes, a third for sums, a zero point in the padding, a scale for each 32 of k."""
    x, w = TensorType(U8, (1, 64, 9, 9)), TensorType(I8, (16, 64, 3, 3))
    found = ContractionDims(
        left=Factor(0, x, (), (0, 2, 3), 1),
        right=Factor(1, w, (), (0,), 1, (2, 3), scales=Scales(3, zero_points=4, block=32)),
        result=TensorType(I32, (1, 16, 9, 9)),
        rows=(0, 2, 3),
        column=1,
        accumulator=I32,
        windows=(Window(2, 2, 3, 1, 1, 1, 1), Window(3, 3, 3, 1, 1, 1, 1)),
        pad_value=128,
    )
    assert (found.m, found.n, found.k, found.batch) == (81, 16, 576, 1)
    assert found.tile_extents == (9, 16)
    assert found.is_padded
