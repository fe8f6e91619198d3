"""The benchmark of kernels: which dispatches are one, what bounds count, how the table is made.
Nothing here is timed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.backends.cpu.object_cache import ObjectCache
from aot.builder import Builder
from aot.ir.graph import Function, Value
from aot.ir.types import DType
from aot.kernels.lowering import lower
from aot.target import selection
from benchmarks.kernels import __main__ as main
from benchmarks.kernels import synthetic
from benchmarks.kernels.bounds import Work, bound_seconds, cost_of, work_of
from benchmarks.kernels.dispatches import Dispatch, Source, dispatches_of_source, key
from benchmarks.kernels.kinds import kind_of
from benchmarks.kernels.machine import Peaks, cache_sizes
from benchmarks.kernels.table import (
    comparison,
    kinds_table,
    percentile,
    shares,
    weighted,
    worst_table,
)
from benchmarks.kernels.timing import Result, fill, index_limits

TARGET = selection.load("x86-64-v3")
PEAKS = Peaks(1e9, 1e8, 1e-9, 5e-8, ((1000, 4e9), (100_000, 2e9), (1 << 27, 1e9)))


def executable(name: str, *types: str, **attrs: Any) -> Function:
    """One op on inputs of these types."""
    b = Builder(kind="executable")
    made = b.op(name, *(b.input(f"x{n}", t) for n, t in enumerate(types)), **attrs)
    for n, value in enumerate((made,) if isinstance(made, Value) else made):
        b.output(f"y{n}", value)
    function = b.function()
    function.bindings = (1,) * (len(types) + len(function.results))
    return function


def convolution(
    image: str, weight: str, *, group: int = 1, stride: int = 1, rank: int = 2
) -> Function:
    sides = {"strides": [stride] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank}
    return executable("conv", image, weight, group=group, **sides)


def result(**changes: Any) -> Result:
    usual = Result("scan", "f32", "a", "k", "m", "n", 1, 2e-5, 1e-5)
    return replace(usual, **changes)


# ---- dispatches ----


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path)


ROWS = 4096


def chain(*widths: int) -> bytes:
    """Products, one after the other, of so many rows that each is a dispatch."""
    g = synthetic.Graph((ROWS, widths[0]))
    for inner, columns in pairwise(widths):
        g.op("MatMul", g.weight(inner, columns))
    return g.model()


def test_equal_dispatches_of_a_model_are_one_with_its_count(cache: ObjectCache) -> None:
    (found,) = dispatches_of_source(Source("m", chain(48, 48, 48, 48)), TARGET, cache)
    assert found.count == 3
    assert found.bytes == 4 * (2 * ROWS * 48 + 48 * 48)
    assert (found.model, found.node) == ("m", "MatMul0")


def test_dispatches_differ_by_extents_and_by_kernel_not_by_the_model(cache: ObjectCache) -> None:
    models = [Source(n, chain(*w)) for n, w in (("a", (48, 48, 80)), ("b", (48, 48)))]
    found = main.collect(iter(models), TARGET, cache)
    assert [(d.model, d.node, d.count) for d in found] == [("a", "MatMul0", 2), ("a", "MatMul1", 1)]
    keys = {key(d, lower(d.function, TARGET)) for d in found}
    assert len(keys) == 2
    (again,) = dispatches_of_source(models[1], TARGET, cache)
    assert key(again, lower(again.function, TARGET)) in keys


def test_a_second_run_reads_what_the_first_one_kept(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("m", chain(48, 48, 80))
    first = dispatches_of_source(source, TARGET, cache)
    monkeypatch.setattr("benchmarks.kernels.dispatches.outlined", None)
    second = dispatches_of_source(source, TARGET, cache)
    assert [(d.text, d.bytes, d.count, d.node) for d in first] == [
        (d.text, d.bytes, d.count, d.node) for d in second
    ]


def test_a_model_that_cannot_be_compiled_is_named_and_left_out(
    cache: ObjectCache, capsys: pytest.CaptureFixture[str]
) -> None:
    g = synthetic.Graph((4,))
    bad = Source("odd", g.op("NoSuchOp").model())
    assert main.collect(iter([bad, Source("m", chain(48, 48))]), TARGET, cache)[0].model == "m"
    assert capsys.readouterr().err.startswith("odd is left out: ")


def test_the_integers_that_a_kernel_reads_memory_at_are_kept(cache: ObjectCache) -> None:
    g = synthetic.Graph((40, 8))
    model = g.op("Gather", g.integers([3, 39, 1])).model()
    (found,) = dispatches_of_source(Source("m", model), TARGET, cache)
    assert list(found.integers.values()) == [[3, 39, 1]]


def test_open_dims_are_bound(cache: ObjectCache) -> None:
    g = synthetic.Graph((1, 8))
    for dim, name in zip(g.inputs[0].type.tensor_type.shape.dim, "NL", strict=True):
        dim.dim_param = name
    (found,) = dispatches_of_source(Source("m", g.op("Sigmoid").model()), TARGET, cache)
    assert found.text == "(f32[1, 64]) sigmoid() f32[1, 64]"


def test_every_synthetic_case_is_a_model(cache: ObjectCache) -> None:
    for source in synthetic.sources((16,), (1,)):
        assert dispatches_of_source(source, TARGET, cache), source.name


def test_values_beyond_the_limit_are_no_case() -> None:
    assert synthetic.CASES["convolution 3x3"](512, 8) is None
    assert synthetic.CASES["convolution 3x3"](512, 1) is not None


# ---- bounds ----


@pytest.mark.parametrize(
    ("name", "types", "attrs", "expected"),
    [
        ("matmul", ("f32[6, 5]", "f32[5, 7]"), {}, Work(6 * 7 * 5)),
        ("matmul", ("f32[3, 6, 5]", "f32[5, 7]"), {}, Work(3 * 6 * 7 * 5)),
        ("matmul_integer", ("u8[6, 5]", "i8[5, 7]"), {}, Work(products=6 * 7 * 5)),
        ("matmul_integer", ("i16[6, 5]", "i8[5, 7]"), {}, Work(6 * 7 * 5)),
        ("add", ("f32[6, 5]", "f32[5]"), {}, Work(30)),
        ("add", ("i64[6, 5]", "i64[5]"), {}, Work(60)),
        ("div", ("f32[6, 5]", "f32[5]"), {}, Work(0, 30)),
        ("sqrt", ("f32[6, 5]",), {}, Work(0, 30)),
        ("transpose", ("f32[6, 5]",), {"perm": [1, 0]}, Work()),
        ("equal", ("f32[6]", "f32[6]"), {}, Work()),
        ("cast", ("i32[6, 5]",), {"to": DType.F32, "clamps": False}, Work(30)),
        ("cast", ("u8[6, 5]",), {"to": DType.I32, "clamps": False}, Work()),
        # rounding converts as well, and the zero point joins what is narrow by then
        ("quantize", ("f32[6, 5]", "f32[]", "u8[]"), {"to": DType.U8}, Work(30 * 1.25, 30)),
        ("reduce_sum", ("f32[6, 5]",), {"axes": [1]}, Work(30)),
        ("scan", ("f32[6, 5]",), {"axis": 1}, Work(30, chain=5)),
        ("top_k", ("f32[6, 64]",), {"axis": 1, "k": 64, "dtype": "i32"}, Work(scalars=6 * 64 * 6)),
        ("top_k", ("f32[6, 64]",), {"axis": 1, "k": 4, "dtype": "i32"}, Work(scalars=6 * 72)),
        (
            "scatter_elements",
            ("f32[9, 5]", "i64[3, 5]", "f32[3, 5]"),
            {"axis": 0},
            Work(scalars=15),
        ),
        # of each element data say where it lies, or of whole rows, whose elements go in vectors
        ("scatter_nd", ("f32[9, 5]", "i64[3, 2]", "f32[3]"), {"depth": 2}, Work(scalars=3)),
        ("scatter_nd", ("f32[9, 5]", "i64[3, 1]", "f32[3, 5]"), {"depth": 1}, Work()),
        (
            "scatter_nd",
            ("f16[9, 5]", "i64[3, 1]", "f16[3, 5]"),
            {"depth": 1, "reduction": "add"},
            Work(7.5),
        ),
        ("gather_elements", ("f32[9, 5]", "i64[4, 5]"), {"axis": 0}, Work(scalars=20)),
        ("gather", ("f32[9, 5]", "i64[4]"), {"axis": 0}, Work()),
        (
            "non_max_suppression",
            ("f32[2, 7, 4]", "f32[2, 3, 7]", "i64[]", "f32[]"),
            {"limit": 5},
            Work(scalars=42),
        ),
    ],
)
def test_what_an_op_must_do(
    name: str, types: tuple[str, ...], attrs: dict[str, Any], expected: Work
) -> None:
    assert work_of(executable(name, *types, **attrs), {}, 0) == expected


def test_a_convolution_is_a_multiply_add_a_tap() -> None:
    function = convolution("f32[2, 6, 9, 9]", "f32[4, 3, 3, 3]", group=2)
    assert work_of(function, {}, 0).operations == 2 * 4 * 7 * 7 * 3 * 9


def test_a_transcendental_is_its_polynomial() -> None:
    one = cost_of("exp")
    assert one.operations > 10
    function = executable("exp", "f32[6, 5]")
    assert work_of(function, {}, 0) == Work(30 * one.operations, 30 * one.divisions)


def test_what_is_the_same_along_an_axis_is_made_once() -> None:
    function = executable("softmax", "f32[6, 50]", axis=1)
    exp = cost_of("exp")
    work = work_of(function, {}, 0)
    assert work.operations < 300 * (2 * exp.operations + 4)


@pytest.mark.parametrize(("mode", "taps"), [("nearest", 1), ("linear", 4)])
def test_what_data_place_is_loaded_one_by_one(mode: str, taps: int) -> None:
    images, places = "f32[2, 3, 8, 9]", "f32[2, 4, 5, 2]"
    made = executable(
        "grid_sample", images, places, mode=mode, padding="zeros", align_corners=False
    )
    assert work_of(made, {}, 0).scalars == 2 * 3 * 4 * 5 * taps


def test_attention_is_two_products_and_a_softmax() -> None:
    q, k, v = "f32[2, 6, 8]", "f32[2, 10, 8]", "f32[2, 10, 4]"
    work = work_of(executable("attention", q, k, v), {}, 0)
    assert work.operations == 2 * 6 * 10 * (8 + 4 + 4 + cost_of("exp").operations)


def test_a_recurrence_reads_its_recurrent_weights_in_every_step() -> None:
    types = ("f32[7, 2, 5]", "f32[1, 16, 5]", "f32[1, 16, 4]")
    work = work_of(executable("lstm", *types, hidden_size=4), {}, 0)
    assert (work.again, work.held) == (7 * 16 * 4 * 4, 16 * 4 * 4)
    assert work.operations == 7 * 2 * 16 * (5 + 4 + cost_of("sigmoid").operations)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(), 5e-8),
        (Work(operations=1e6), 1e-3),
        (Work(operations=1e6, divisions=1e6), 11e-3),
        (Work(scalars=1e6), 8e-3),
        (Work(products=1e6), 1e-3),
        (Work(bytes=800), 2e-7),
        (Work(bytes=80_000), 4e-5),
        (Work(bytes=800_000), 8e-4),
        (Work(bytes=1 << 30), (1 << 30) / 1e9),
        (Work(again=8000, held=800), 2e-6),
        (Work(chain=1000), 1e-6),
    ],
)
def test_a_bound_is_the_largest_of_its_parts(work: Work, expected: float) -> None:
    assert bound_seconds(work, PEAKS, 8) == pytest.approx(expected)


def test_the_best_of_two_measurements_is_the_faster_of_each() -> None:
    other = Peaks(2e9, 1e7, 2e-9, 4e-8, ((1000, 5e9), (100_000, 1e9), (1 << 27, 1e9)))
    reads = ((1000, 5e9), (100_000, 2e9), (1 << 27, 1e9))
    assert PEAKS.best(other) == Peaks(2e9, 1e8, 1e-9, 4e-8, reads)
    fast = replace(other, products=4e9)
    assert PEAKS.best(fast).products == fast.best(PEAKS).products == 4e9
    assert bound_seconds(Work(products=4e6), fast, 4) == 1e-3


def test_caches_are_those_for_data_smallest_first(tmp_path: Path) -> None:
    for n, (kind, size) in enumerate(
        [("Data", "32K"), ("Instruction", "64K"), ("Unified", "1M"), ("Unified", "odd")]
    ):
        folder = tmp_path / f"index{n}"
        folder.mkdir()
        (folder / "type").write_text(f"{kind}\n")
        (folder / "size").write_text(f"{size}\n")
    assert cache_sizes(tmp_path) == (32 << 10, 1 << 20)
    assert cache_sizes(tmp_path / "none") == (32 << 10, 512 << 10, 8 << 20)


# ---- operands ----


def test_positions_stay_inside_of_what_they_are_positions_in() -> None:
    function = executable("gather", "f32[9, 5]", "i64[20]", axis=1)
    assert index_limits(function, {}) == {1: (0, 5)}


def test_lengths_are_whole() -> None:
    types = ("f32[7, 2, 5]", "f32[1, 16, 5]", "f32[1, 16, 4]", "f32[1, 32]", "i32[2]")
    assert index_limits(executable("lstm", *types, hidden_size=4), {}) == {4: (7, 8)}


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8", "u8", "i32", "i64", "bool"])
def test_operands_are_filled_with_ordinary_values(dtype: str) -> None:
    type = DType(dtype)
    view = np.zeros(4096, type.numpy)
    fill(view, type, 0, 5, np.random.default_rng(1))
    least, most = {"i8": (-128, 127), "u8": (0, 255), "bool": (0, 1)}.get(dtype, (0, 4))
    if type.is_float:
        assert 0 < view.min() < 0.1 and 0.9 < view.max() <= 1
    else:
        assert (view.min(), view.max()) == (least, most)


# ---- kinds ----


@pytest.mark.parametrize(
    ("image", "weight", "more", "expected"),
    [
        ("f32[1, 32, 9, 9]", "f32[64, 32, 1, 1]", {}, "convolution 1x1"),
        ("f32[1, 32, 9, 9]", "f32[64, 32, 1, 1]", {"stride": 2}, "convolution 1x1 strided"),
        ("f32[1, 32, 9, 9]", "f32[3, 32, 1, 1]", {}, "convolution 1x1 few outputs"),
        ("f32[1, 32, 9, 9]", "f32[64, 32, 3, 3]", {}, "convolution kxk"),
        ("f32[1, 32, 9, 9]", "f32[64, 32, 3, 3]", {"stride": 2}, "convolution kxk strided"),
        ("f32[1, 32, 9, 9]", "f32[1, 32, 3, 3]", {}, "convolution few outputs"),
        ("f32[1, 3, 9, 9]", "f32[64, 3, 3, 3]", {"stride": 2}, "convolution few channels"),
        ("f32[1, 32, 9, 9]", "f32[32, 8, 3, 3]", {"group": 4}, "convolution grouped"),
        ("f32[1, 32, 9, 9]", "f32[32, 1, 3, 3]", {"group": 32}, "convolution depthwise"),
        ("f32[1, 32, 9, 9]", "f32[32, 1, 7, 7]", {"group": 32}, "convolution depthwise large"),
        ("f32[1, 32, 99]", "f32[64, 32, 3]", {"rank": 1}, "convolution 1-D"),
        ("f32[1, 32, 99]", "f32[64, 32, 25]", {"rank": 1}, "convolution 1-D long"),
        ("f32[1, 32, 9, 9]", "f32[64, 32, 1, 5]", {}, "convolution 1-D"),
    ],
)
def test_kinds_of_convolutions(
    image: str, weight: str, more: dict[str, int], expected: str
) -> None:
    assert kind_of(convolution(image, weight, **more), {}) == expected


@pytest.mark.parametrize(
    ("name", "types", "attrs", "expected"),
    [
        ("matmul", ("f32[64, 5]", "f32[5, 16]"), {}, "product tall"),
        ("matmul", ("f32[16, 5]", "f32[5, 64]"), {}, "product flat"),
        ("matmul", ("f32[16, 5]", "f32[5, 16]"), {}, "product square"),
        ("matmul", ("f32[1, 5]", "f32[5, 16]"), {}, "product one row"),
        ("matmul", ("f32[3, 16, 5]", "f32[3, 5, 16]"), {}, "product square batched"),
        ("reduce_sum", ("f32[6, 5]",), {"axes": [1]}, "reduction innermost axis, rank 2"),
        ("reduce_sum", ("f32[6, 5, 3]",), {"axes": [1]}, "reduction outer axis, rank 3"),
        ("reduce_sum", ("f32[6, 5, 1]",), {"axes": [1]}, "reduction innermost axis, rank 3"),
        ("scan", ("f32[6, 5]",), {"axis": 1}, "scan"),
        ("transpose", ("f32[6, 5]",), {"perm": [1, 0]}, "movement transpose"),
        ("relu", ("f32[6, 5]",), {}, "elementwise"),
        ("sigmoid", ("f32[6, 5]",), {}, "elementwise with transcendentals"),
        ("attention", ("f32[2, 6, 8]",) * 3, {}, "attention"),
    ],
)
def test_kinds_of_other_ops(
    name: str, types: tuple[str, ...], attrs: dict[str, Any], expected: str
) -> None:
    assert kind_of(executable(name, *types, **attrs), {}) == expected


# ---- the table ----


def test_the_table_has_a_line_for_each_kind_and_type() -> None:
    results = [
        result(text="a", seconds=4e-5),
        result(text="b", seconds=1e-5, count=2),
        result(text="c", dtype="i8", seconds=3e-5),
        result(text="d", kind="pool max", seconds=5e-6),
    ]
    assert kinds_table(results).splitlines() == [
        "kind                                     dtype count  median     p90 by time  above",
        "pool max                                 f32       1    0.50    0.50    0.50   0.0%",
        "scan                                     f32       2    2.50    4.00    2.00  60.0%",
        "scan                                     i8        1    3.00    3.00    3.00  40.0%",
        "all                                                4    2.00    4.00    1.90 100.0%",
    ]


def test_percentiles_and_the_ratio_by_time() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.9) == 3.0
    assert percentile([5.0], 0.9) == 5.0
    assert percentile(list(range(100)), 0.9) == 90
    assert weighted([result(seconds=3e-5), result(seconds=1e-5, count=3)]) == pytest.approx(1.5)


def test_shares_of_all_dispatches_within_some_ratios() -> None:
    seconds = (1e-5, 1.6e-5, 2e-5, 5e-5, 7e-5)
    assert shares([result(text=str(s), seconds=s) for s in seconds]) == (
        "5 dispatches: 40.0 % within 1.6, 60.0 % within 3, 80.0 % within 6 of the bound, "
        "all 3.32 by time"
    )


def test_the_worst_come_first_with_where_they_are() -> None:
    found = worst_table([result(), result(seconds=9e-5, text="b"), result(seconds=5e-5)], 2)
    assert found.splitlines() == [
        "   9.00      90.00 us over      10.00 us  scan f32  m n",
        "        b",
        "   5.00      50.00 us over      10.00 us  scan f32  m n",
        "        a",
    ]


def test_a_comparison_names_what_got_worse_by_what_it_computes() -> None:
    before = [result(text=t) for t in "abcd"]
    after = [
        result(text="a", key="other", seconds=4e-5),
        result(text="b", seconds=4e-5, bound=2e-5),  # so is what the machine could do
        result(text="c", seconds=1e-5),
        result(text="e"),
    ]
    lines = comparison(before, after).splitlines()
    assert lines[:2] == [
        "3 dispatches in both: 1 got worse, 1 better; 1 are new, 1 gone",
        "median of after over before 1.000",
    ]
    assert lines[2] == "worse: 2.00 -> 4.00"
    assert lines[5] == "better: 2.00 -> 1.00"


def test_a_few_nanoseconds_more_are_not_worse() -> None:
    before, after = result(seconds=2e-8, bound=1e-8), result(seconds=4e-8, bound=1e-8)
    assert "0 got worse, 0 better" in comparison([before], [after])


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(main.saved([result()], PEAKS)))
    assert main.loaded(path) == [result()]
    assert json.loads(path.read_text())["peaks"]["launch"] == asdict(PEAKS)["launch"]


def test_the_quick_set_is_a_part_of_the_whole() -> None:
    assert set(synthetic.QUICK_SIZES) < set(synthetic.SIZES)
    assert set(synthetic.QUICK_BATCHES) < set(synthetic.BATCHES)
    assert set(main.QUICK_MODELS) < set(main.model_zoo.MODELS)


def test_models_of_folders_have_the_shapes_beside_them(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("a", "inner/b"):
        (tmp_path / f"{name}.onnx").write_bytes(b"")
    np.savez(tmp_path / "a.0.npz", x=np.zeros((2, 3)))
    found = list(main.file_sources([tmp_path]))
    assert [(s.name, dict(s.shapes)) for s in found] == [("a", {"x": (2, 3)}), ("b", {})]


def test_unused_fields_of_a_dispatch_do_not_change_its_text() -> None:
    function = executable("relu", "f32[4, 5]")
    one = Dispatch(function, {}, 160, {}, "m", "n")
    assert one.text == replace(one, model="other", count=9).text == "(f32[4, 5]) relu() f32[4, 5]"
