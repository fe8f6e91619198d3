"""Benchmarks: what a dispatch is said to compute and move, how the tool is found and called, and
the tables. Times are only checked to be there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

import aot
from aot.analysis.launches import Launch, flops_of_call, launches_of
from aot.builder import Builder
from aot.cli import bench as cli_bench
from aot.cli.main import main
from aot.errors import CompileError, RuntimeFailure
from aot.ir.dims import Dim, evaluate, symbol
from aot.ir.graph import Module, Value
from aot.ir.record import REGISTRY, Kind, call_of
from aot.link.image import Arch, Device, VariantImage
from aot.link.notes import Notes, VariantNotes, decode_notes, encode_notes
from aot.ops.control import IF
from aot.runtime import loader
from aot.runtime.runner import RUNNER_VARIABLE, find_runner
from aot.target.selection import load
from aot.tools.bench.benchmark import Case, cold, steady
from aot.tools.bench.peaks import peaks_of
from aot.tools.engines import ENGINES, compare, installed
from tests.support.runtime_api import library_path
from tests.support.runtime_build import build_tool


@pytest.fixture(autouse=True)
def use_built_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library and tool of this checkout."""
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))
    monkeypatch.setenv(RUNNER_VARIABLE, str(tool))


# ---- what dispatches compute and move ----


def flops(name: str, *types: str | None, **attrs: Any) -> Dim:
    """Of one op on inputs of these types."""
    b = Builder()
    operands = [None if t is None else b.input(f"x{n}", t) for n, t in enumerate(types)]
    made = b.op(name, *operands, **attrs)
    value = made if isinstance(made, Value) else made[0]
    assert value.op is not None
    counts = flops_of_call(call_of(value.op))
    assert len(counts) <= 1, "of several types"
    return next(iter(counts.values()), 0)


N = symbol("N")
IMAGE = "f32[1, 4, 6, 6]"
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def test_arithmetic_of_products() -> None:
    # each of the 5 x 7 results is a sum of 3 products
    assert flops("matmul", "f32[5, 3]", "f32[3, 7]") == 2 * 105
    assert flops("matmul", "f32[N, 3]", "f32[3, 7]") == 42 * N
    # 8 x 6 x 6 results of 4 x 3 x 3 taps, those in the padding too
    assert flops("conv", IMAGE, "f32[8, 4, 3, 3]", group=1, **CONV) == 2 * 8 * 36 * 36
    # each channel by itself: 9 taps
    assert flops("conv", IMAGE, "f32[4, 1, 3, 3]", group=4, **CONV) == 2 * 4 * 36 * 9


def test_arithmetic_of_elements_and_rows() -> None:
    assert flops("add", "f32[5, 3]", "f32[3]") == 15
    assert flops("tanh", "f32[N, 3]") == 3 * N
    assert flops("reduce_sum", "f32[5, 3]", axes=(1,), keepdims=False) == 15
    # for an element of the sum a maximum, a difference, an exp and an addition; for one of the
    # result a difference, an exp and a product: what two read alike is counted once. Each row has
    # one quotient
    assert flops("softmax", "f32[5, 3]", axis=1) == 7 * 15 + 5
    assert flops("transpose", "f32[5, 3]", perm=(1, 0)) == 0
    assert flops("reshape", "f32[5, 3]", shape=(15,)) == 0


def test_arithmetic_of_ops_with_kernels_of_their_own() -> None:
    # 2 heads x 5 queries x 7 keys: 2 * (4 + 3) of both products, 6 of scaling and softmax
    types = ("f32[1, 2, 5, 4]", "f32[1, 2, 7, 4]", "f32[1, 2, 7, 3]", None, None)
    assert flops("attention", *types) == 70 * 20
    # 6 steps of 1 row by 4 x 3 gates, of 5 features and 3 states each
    types = ("f32[6, 1, 5]", "f32[1, 12, 5]", "f32[1, 12, 3]", *(None,) * 5)
    assert flops("lstm", *types, hidden_size=3) == 2 * 6 * 12 * 8


def test_what_has_no_expression_says_what_it_computes() -> None:
    for record in REGISTRY.values():
        if record.kind in (Kind.RECURRENCE, Kind.ATTENTION):
            assert record.flops is not None, record.name
            calls = [record.call(sample.operands, sample.attrs) for sample in record.samples]
            assert max(map(record.flops, calls)) > 0


def outlined(b: Builder, **options: Any) -> Module:
    """A module as programs are emitted from it."""
    from aot.options import CompileOptions
    from aot.passes.base import PassContext, run_passes
    from aot.passes.order import MODEL_PASSES, TARGET_PASSES

    module = b.module()
    context = PassContext(CompileOptions(**options), load("x86-64-v3"))
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), context)
    return module


def test_dispatches_of_one_executable_differ_in_what_they_do() -> None:
    """Two products with weights [8, 16], of N and of 2 * N rows."""
    b = Builder()
    rng = np.random.default_rng(0)
    for name, rows in (("x", "N"), ("y", "2*N")):
        x = b.input(name, f"f32[{rows}, 8]")
        b.output(f"{name}_out", b.op("matmul", x, rng.standard_normal((8, 16), np.float32)))
    module = outlined(b, disable=["fusion"])
    assert len(module.executables) == 1
    launches = launches_of(module.main, module)
    work, row, weights = 2 * 8 * 16, 4 * (8 + 16), 4 * 8 * 16
    assert [(n.flops, n.bytes) for n in launches] == [
        (N * work, N * row + weights),
        (2 * N * work, 2 * N * row + weights),
    ]


def test_what_is_chosen_from_a_table_is_what_is_read() -> None:
    b = Builder()
    table = np.zeros((1000, 16), np.float32)
    rows = b.op("gather", table, b.input("i", "i64[3]"), axis=0)
    b.output("y", b.op("tanh", rows))
    module = outlined(b)
    (launch,) = launches_of(module.main, module)
    assert launch.flops == 3 * 16
    assert launch.bytes == 3 * 8 + 2 * 3 * 16 * 4  # indices; rows read, rows written


def test_arithmetic_has_the_type_of_what_is_multiplied() -> None:
    """Products of bytes are such, whatever the type of their sums; a peak is known by the type."""

    def types(*operands: str, op: str = "matmul", **attrs: Any) -> set[str]:
        b = Builder()
        values = [b.input(f"x{n}", t) for n, t in enumerate(operands)]
        b.output("y", b.op(op, *values, **attrs))
        module = outlined(b)
        return {launch.dtype for launch in launches_of(module.main, module)}

    assert types("f32[4, 8]", "f32[8, 3]") == {"f32"}
    assert types("f64[4, 8]", "f64[8, 3]") == {"f64"}
    assert types("i32[4, 8]", "i32[4, 8]", op="add") == {"i32"}
    assert types("u8[4, 8]", "i8[8, 3]", op="matmul_integer", max_weight=127) == {"i8"}
    assert types("f32[4, 8]", op="transpose", perm=(1, 0)) == {""}


def test_peaks_follow_from_the_features() -> None:
    machine = {
        "fma_gflops": {"16": 10.0, "32": 20.0, "64": 19.0},
        "byte_gops": {"16": 20.0, "32": 40.0},
        "byte_dot_gops": {"16": 40.0, "32": 80.0},
    }

    def variant(name: str) -> VariantImage:
        features = tuple(load(name).features)
        return VariantImage(name, Device.CPU, Arch.X86_64, 8, (), (), features)

    assert peaks_of(machine, variant("x86-64-v2")) == {"f32": 10.0, "i8": 20.0}
    assert peaks_of(machine, variant("x86-64-v3")) == {"f32": 20.0, "i8": 40.0}
    assert peaks_of(machine, variant("x86-64-v3-vnni")) == {"f32": 20.0, "i8": 80.0}
    assert peaks_of(machine, variant("x86-64-v4")) == {"f32": 20.0, "i8": 40.0}
    assert peaks_of({"fma_gflops": {}}, variant("riscv64")) == {}
    halves = {"half_gflops": {"16": 30.0}, "fma_gflops": {"16": 15.0}}
    assert peaks_of(halves, variant("aarch64-android-dotprod")) == {"f32": 15.0, "f16": 30.0}


def test_a_part_of_a_buffer_is_what_is_read_and_written() -> None:
    """Columns of a matrix, and places in one, with what lies between them left out."""
    b = Builder()
    x = b.input("x", "f32[64, 256]")
    part = b.op("slice", x, starts=[0, 16], stops=[64, 48], steps=[1, 1])
    b.output("y", b.op("concat", b.op("tanh", part), b.op("exp", x), axis=1))
    launches = launches_of((module := outlined(b)).main, module)
    assert sum(evaluate(n.bytes, {}) for n in launches) == 2 * 4 * 64 * (32 + 256)


def test_what_several_elements_share_is_computed_once() -> None:
    """The root of a line's variance, and what is added to it before: not once an element."""
    short, long = (
        flops("layer_norm", f"f32[6, {columns}]", f"f32[{columns}]", axis=1) for columns in (50, 51)
    )
    assert isinstance(short, int) and isinstance(long, int)
    each = long - short  # of one more element a line
    assert each % 6 == 0 and short - 50 * each >= 6 * 3


def test_notes_keep_launches() -> None:
    launches = (Launch("a/b:c", 12, 4 * N + 8, "f32"), Launch("", N * N, 0))
    notes = Notes((VariantNotes(None, ((), ()), (launches, ())),))
    assert decode_notes(encode_notes(notes)).variants[0].launches == (launches, ())
    data = json.loads(encode_notes(notes))
    del data["variants"][0]["launches"][0][1][3]  # as earlier versions wrote them
    assert decode_notes(json.dumps(data).encode()).variants[0].launches == (launches, ())
    for wrong in ([1, 2, 3], ["a", 2], ["a", "N +", 1], ["a", 1, 2, 3], ["a", 1, 2, "f32", 4]):
        data = json.loads(encode_notes(notes))
        data["variants"][0]["launches"][0][0] = wrong
        with pytest.raises(ValueError):
            decode_notes(json.dumps(data).encode())


# ---- a small model, compiled ----


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = softmax(tanh(x @ w) @ v) with an open batch."""
    rng = np.random.default_rng(0)
    w, v = rng.standard_normal((32, 64), np.float32), rng.standard_normal((64, 10), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="squash"),
        helper.make_node("MatMul", ["b", "v"], ["c"], name="second"),
        helper.make_node("Softmax", ["c"], ["y"], name="normalise"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")],
    )
    path = tmp_path_factory.mktemp("bench") / "model.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def module(model: Path) -> Path:
    """The model's module file."""
    path = model.with_suffix(".aotm")
    aot.compile(model).save(path)
    return path


def test_steady(module: Path) -> None:
    facts = steady(Case(module, threads=2, shapes={"x": (6, 32)}), runs=5, seconds=0.01)
    assert facts["runs"] >= 5
    assert facts["threads"] == 2
    assert 0 < facts["min_ms"] <= facts["median_ms"] <= facts["p99_ms"] <= facts["max_ms"]
    products = 2 * 6 * (32 * 64 + 64 * 10)
    elementwise = 6 * 64 + 7 * 6 * 10 + 6
    assert facts["flops"] == products + elementwise
    nodes = [row["node"] for row in facts["dispatches"]]
    assert nodes[0] == "first"
    assert set(nodes) <= {"first", "second", "normalise"}
    assert sum(row["flops"] for row in facts["dispatches"]) == facts["flops"]
    assert sum(row["share"] for row in facts["dispatches"]) == pytest.approx(1)
    for row in facts["dispatches"]:
        assert (row["kind"], row["count"]) == ("dispatch", 1)
        seconds = row["median_ms"] / 1e3
        assert row["gflops"] == pytest.approx(row["flops"] / seconds / 1e9)
        assert row["gbs"] == pytest.approx(row["bytes"] / seconds / 1e9)
        assert row["dtype"] == "f32"
    machine = facts["machine"]
    assert machine["peak_gflops"] == machine["peaks_gops"]["f32"]
    assert machine["peak_gflops"] in machine["fma_gflops"].values()
    assert machine["memory_gbs"] in machine["read_gbs"].values()


def test_steady_without_a_profile(module: Path) -> None:
    facts = steady(Case(module), runs=3, seconds=0, profile=False)
    assert facts["runs"] == 3
    assert "dispatches" not in facts
    assert "machine" not in facts


def test_a_module_without_notes_has_times_alone(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.aotm"
    aot.compile(model, strip=True).save(path)
    facts = steady(Case(path), runs=3, seconds=0)
    assert facts["flops"] is None
    assert facts["gflops"] is None
    for row in facts["dispatches"]:
        assert (row["node"], row["flops"], row["gbs"], row["of_peak"]) == ("", None, None, None)
        assert row["median_ms"] > 0
    assert "Gop at" not in cli_bench.steady_text(facts)


def test_merged_modules_keep_their_nodes(model: Path, module: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.aotm"
    aot.compile(model, entry_name="other").save(other)
    merged = tmp_path / "merged.aotm"
    aot.merge([module, other]).save(merged)
    for entry in ("model", "other"):
        facts = steady(Case(merged, entry=entry), runs=3, seconds=0)
        assert facts["entry"] == entry
        assert facts["dispatches"][0]["node"] == "first"


def branch(name: str, node: onnx.NodeProto, *weights: onnx.TensorProto) -> onnx.GraphProto:
    """A branch of one node that gives f32[4, 32]."""
    result = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [4, 32])
    return helper.make_graph([node], name, [], [result], list(weights))


@pytest.mark.skipif(IF.unsupported != "", reason="control flow can't be compiled yet")
def test_dispatches_of_the_branch_that_ran(tmp_path: Path) -> None:
    w = numpy_helper.from_array(np.ones((32, 32), np.float32), "w")
    yes = branch("yes", helper.make_node("Tanh", ["x"], ["a"], name="squash"))
    no = branch("no", helper.make_node("MatMul", ["x", "w"], ["b"], name="product"), w)
    graph = helper.make_graph(
        [
            helper.make_node("If", ["go"], ["c"], name="choose", then_branch=yes, else_branch=no),
            helper.make_node("Softmax", ["c"], ["y"], name="normalise"),
        ],
        "g",
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
    )
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.aotm"
    aot.compile(helper.make_model(graph, opset_imports=opset, ir_version=8)).save(path)
    for go, expected, flops_of_it in (
        (True, "squash", 4 * 32),
        (False, "product", 2 * 4 * 32 * 32),
    ):
        rows = steady(Case(path, inputs={"go": go}), runs=1, seconds=0)["dispatches"]
        found = {row["node"]: row["flops"] for row in rows if row["kind"] == "dispatch"}
        assert found == {expected: flops_of_it, "normalise": 7 * 4 * 32 + 4}


def test_cold(module: Path) -> None:
    facts = cold(Case(module), rounds=2, drop_cache=False)["cold"]
    assert list(facts["warm"]["phases_ms"]) == list(cli_bench.PHASES)
    assert facts["warm"]["rounds"] == 2


def test_inputs_are_checked_before_anything_runs(module: Path) -> None:
    with pytest.raises(CompileError, match="no input is called 'z'"):
        steady(Case(module, shapes={"z": (1,)}))
    with pytest.raises(RuntimeFailure, match='input "x": expected dtype f32, found f64'):
        steady(Case(module, inputs={"x": np.zeros((1, 32))}), runs=1, seconds=0)


def test_where_the_tool_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_runner() == build_tool()
    monkeypatch.setenv(RUNNER_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(RuntimeFailure, match=r"AOT_RUN is .*none, which is no file"):
        find_runner()
    monkeypatch.delenv(RUNNER_VARIABLE)
    library = tmp_path / loader.LIBRARY_NAME
    library.touch()
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(RuntimeFailure, match="aot-run is not there: neither .* nor on PATH"):
        find_runner()
    on_path = tmp_path / "path" / "aot-run"
    on_path.parent.mkdir()
    on_path.touch(mode=0o755)
    assert find_runner() == on_path
    beside = tmp_path / "aot-run"
    beside.touch()
    assert find_runner() == beside


def test_a_tool_that_fails_says_why(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "aot-run"
    monkeypatch.setenv(RUNNER_VARIABLE, str(tool))
    for script, message in (
        ("echo 'aot-run: out of luck' >&2; exit 1", "aot-run: out of luck"),
        ("exit 0", "aot-run: it said nothing"),
        ("kill -9 $$", "aot-run: signal 9 ended it"),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        with pytest.raises(RuntimeFailure) as caught:
            steady(Case(module))
        assert str(caught.value) == message
    tool.chmod(0o644)
    with pytest.raises(RuntimeFailure, match="cannot run .*aot-run: Permission denied"):
        steady(Case(module))


# ---- other engines ----


def test_engines_take_turns(module: Path, model: Path) -> None:
    facts = compare(Case(module), model, ["onnxruntime"], rounds=2, runs=2, seconds=0)
    medians = facts["median_ms"]
    assert list(medians) == ["aotc", "onnxruntime"]
    assert facts["ratio"] == {"onnxruntime": medians["aotc"] / medians["onnxruntime"]}
    assert all(len(rounds) == 2 for rounds in facts["round_medians_ms"].values())
    assert facts["shapes"] == {"x": [1, 32]}
    ours, theirs = facts["round_medians_ms"].values()
    assert facts["is_noise"] == {
        "onnxruntime": not (max(ours) < min(theirs) or max(theirs) < min(ours))
    }
    said = cli_bench.comparison_text({**facts, "is_noise": {"onnxruntime": True}})
    assert ", noise\n" in said and said.endswith("; noise: the rounds of both overlap")
    assert "noise" not in cli_bench.comparison_text({**facts, "is_noise": {"onnxruntime": False}})
    assert "onnxruntime" in installed()
    assert tuple(ENGINES) == cli_bench.ENGINE_NAMES


def test_engines_that_do_not_work(
    module: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(module)
    with pytest.raises(CompileError, match="no engine is called 'tvm': onnxruntime, openvino"):
        compare(case, model, ["tvm"])
    with pytest.raises(CompileError, match=r"cannot read .*none.onnx: no such file"):
        compare(case, tmp_path / "none.onnx", ["onnxruntime"])
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"no model")
    with pytest.raises(CompileError, match=r"onnxruntime cannot run .*wrong.onnx: "):
        compare(case, wrong, ["onnxruntime"])

    def missing(*_: object) -> Any:
        raise ImportError("no module")

    monkeypatch.setitem(ENGINES, "openvino", missing)
    with pytest.raises(CompileError, match="openvino is not installed: pip install openvino"):
        compare(case, model, ["openvino"])


# ---- the command ----


def bench(*arguments: object) -> Result:
    """`aotc bench`."""
    return CliRunner().invoke(cli_bench.bench, list(map(str, arguments)))


def test_the_table(module: Path) -> None:
    result = bench(module, "--seconds", 0, "--runs", 3, "--shape", "x=4x32")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}Z, .*, \d+ cores?, .*, x=4x32", lines[0])
    assert lines[1].startswith(f"{module}: ")
    assert "3 runs: median" in result.output
    assert "Gop/s in f32" in result.output
    header = next(line.split() for line in lines if line.lstrip().startswith("ms "))
    assert " ".join(header) == "ms share type Gop/s peak GB/s grid threads code node"
    assert lines[-1].split()[-1] in ("first", "second", "normalise")


def test_the_other_reports(module: Path, model: Path) -> None:
    result = bench(module, "--cold", "--rounds", 2)
    assert result.exit_code == 0, result.output
    assert "medians of 2 fresh processes" in result.output
    for phase in cli_bench.PHASES:
        assert phase in result.output
    quick = ("--rounds", 1, "--runs", 1, "--seconds", 0)
    result = bench(module, "--against", "installed", "--model", model, *quick)
    assert result.exit_code == 0, result.output
    first = [line.split()[0] for line in result.output.splitlines()]
    assert first[1:] == ["engine", "aotc", *installed(), "medians"]
    facts = json.loads(bench(module, "--json", "--no-profile", "--runs", 1, "--seconds", 0).output)
    assert facts["runs"] == 1


def test_no_engine_is_installed(module: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.tools.engines.installed", tuple)
    result = bench(module, "--against", "installed", "--model", model)
    assert result.exit_code == 2
    assert "none is installed: onnxruntime, openvino" in result.output


def test_wrong_usage(module: Path, model: Path) -> None:
    for arguments, message in (
        (("--against", "onnxruntime"), "--against and --model go together"),
        (("--model", model), "--against and --model go together"),
        (("--model", model, "--against", "onnxruntime", "--cold"), "exclude each other"),
        (("--threads", 0), "'0' is not a number of threads, 1 to 256, or auto"),
    ):
        result = bench(module, *arguments)
        assert result.exit_code == 2
        assert message in result.output


def test_the_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "/nowhere.aotm"]) == 1
    assert capsys.readouterr().err.startswith("aotc: error: cannot read /nowhere.aotm: ")
