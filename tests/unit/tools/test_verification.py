"""The measure of agreement, and the arrays that stand in for inputs nobody gave."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.cli.main import ORACLE_NAMES
from aot.cli.text import verification_table
from aot.errors import CompileError
from aot.ir.interpreter.interpreter import run
from aot.ir.text.printer import print_module
from aot.ir.types import DType
from aot.options import CompileOptions
from aot.runtime.inputs import make_inputs
from aot.runtime.tensors import TensorInfo
from aot.target import selection as targets
from aot.tools import oracles
from aot.tools.agreement import Worst, compare, least_agreement
from aot.tools.engines import check_onnx
from aot.tools.open_extents import with_followers
from aot.tools.rounding import OtherRoundings
from aot.tools.verification import verify

X = TensorInfo("x", "f32", ("N", 3, "W"), ((2, 8), (3, 3), (0, None)))
IDS = TensorInfo("ids", "i64", (4,), ((4, 4),))


def error(result: object, expected: object) -> float:
    return compare("y", np.asarray(result), np.asarray(expected)).error


def test_the_error_is_relative_to_the_largest_magnitude() -> None:
    found = compare("y", np.float32([1, -100.5]), np.float32([1.25, -100]))
    assert (found.magnitude, found.error, found.problem) == (100, 0.005, "")


def test_where_all_is_zero_the_error_is_absolute() -> None:
    assert error([0.0, 0.5], [0.0, 0.0]) == 0.5


def test_integers_are_compared_exactly() -> None:
    big = 1 << 62
    assert error([big], [big]) == 0
    assert 0 < error([big + 1], [big]) < 1e-18
    assert error([True], [False]) == 1


def test_nan_and_infinities_must_stand_in_the_same_places() -> None:
    nan, inf = np.nan, np.inf
    assert error([nan, inf, -inf, 1], [nan, inf, -inf, 1]) == 0
    for other in ([1, inf, -inf, 1], [nan, -inf, -inf, 1], [nan, inf, -inf, nan], [nan, inf, 1, 1]):
        found = compare("y", np.array(other), np.array([nan, inf, -inf, 1]))
        assert (found.error, found.problem) == (inf, "NaN or infinities in different places")


def test_shapes_and_dtypes_must_be_equal() -> None:
    found = compare("y", np.zeros((2, 1)), np.zeros((1, 2)))
    assert (found.error, found.problem) == (np.inf, "the engine gives float64[1, 2]")
    assert error(np.float32([1]), np.float64([1])) == np.inf


def test_empty_outputs_agree() -> None:
    assert error(np.zeros((0, 4)), np.zeros((0, 4))) == 0


def test_the_worst_element_is_named_and_errors_are_counted() -> None:
    expected = np.float32([[1, 0.5], [100, 2]])
    found = compare("y", expected + np.float32([[0, 9e-6], [0, -0.5]]), expected)
    assert found.worst == Worst((1, 1), 1.5, 2.0)
    assert found.histogram == (2, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0)  # 9e-8 and 5e-3 of 100
    nan = compare("y", np.float32([1, np.nan]), np.float32([1, 2]))
    assert nan.worst is not None and nan.worst.index == (1,) and nan.worst.expected == 2
    assert compare("y", expected, expected).worst is None
    (both,) = least_agreement([(found,), (compare("y", expected, expected),)])
    assert both.worst == found.worst and both.histogram[:3] == (6, 0, 1)


def rectified(tmp_path: Path, bias: float) -> Path:
    """relu(x + bias) of a few numbers in -1 to 1: all zeros where the bias is below -1."""
    b = Builder()
    x = b.input("x", "f32[3]")
    b.output("y", b.op("relu", b.op("add", x, np.float32(bias))))
    path = tmp_path / f"m{bias}.ir"
    path.write_text(print_module(b.module()))
    return path


def test_an_output_that_is_one_number_says_little(tmp_path: Path) -> None:
    """Other random inputs are tried first; what is said of all of them is told."""
    dead = rectified(tmp_path, -100.0)
    found = verify(aot.compile(dead), dead)
    assert (found.agrees, found.uninformative) == (True, ("y",))
    assert verification_table(found).endswith(
        "y: one number all over, which says little; give inputs that mean something with --input"
    )
    alive = rectified(tmp_path, 0.0)
    assert verify(aot.compile(alive), alive).uninformative == ()
    given = verify(aot.compile(alive), alive, inputs={"x": [-1.0, -2.0, -3.0]})
    assert (given.agrees, given.uninformative) == (True, ("y",))
    assert not compare("y", np.float32([0]), np.float32([0])).is_constant, "a single number"


def quantised(tmp_path: Path, name: str, scale: float, zero: int) -> Path:
    """Two layers in 8 bits: of x [64, 64], and of its product with constants."""
    b = Builder()
    weights = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float32)
    y = b.input("x", "f32[64, 64]")
    for step, point in ((np.float32(scale), np.int8(zero)), (np.float32(0.1), np.int8(0))):
        codes = b.op("quantize", y, step, point, to=DType.I8)
        y = b.op("matmul", b.op("dequantize", codes, step, np.int8(0)), weights)
    b.output("y", y)
    path = tmp_path / f"{name}.ir"
    path.write_text(print_module(b.module()))
    return path


def test_a_quantised_model_may_round_otherwise_and_no_more(tmp_path: Path) -> None:
    """Another engine's quotients differ in their last bits; a zero point that is one off is wrong,
    although no element is off by more than a step."""
    model = quantised(tmp_path, "model", 1 / 127, 0)
    rounded = aot.compile(quantised(tmp_path, "rounded", (1 + 1e-5) / 127, 0))
    found = verify(rounded, model)
    (y,) = found.outputs
    assert found.agrees and found.rounded == (y,) and y.error > 1e-4
    lines = verification_table(found).splitlines()
    assert y.noise is not None and y.tolerance == y.noise
    assert (
        lines[-1] == f"y: within {y.tolerance:.2g}, rms {y.rms_tolerance:.2g}, as the model rounds"
    )
    assert not verify(rounded, model, tolerance=1e-4).agrees
    wrong = aot.compile(quantised(tmp_path, "wrong", 1 / 127, 1))
    assert not verify(wrong, model).agrees


def half(tmp_path: Path, name: str, factor: float) -> Path:
    b = Builder()
    x = b.input("x", "f16[4096]")
    y = b.op("mul", b.op("exp", b.op("sin", x)), np.float16(factor))
    b.output("y", b.op("tanh", b.op("sub", y, x)))
    path = tmp_path / f"{name}.ir"
    path.write_text(print_module(b.module()))
    return path


def test_so_may_a_model_in_half_precision(tmp_path: Path) -> None:
    model = half(tmp_path, "model", 1.5)
    found = verify(aot.compile(model), model)
    assert found.agrees and found.rounded == found.outputs
    assert not verify(aot.compile(half(tmp_path, "wrong", 1.51)), model).agrees


# ---- inputs ----


def test_random_inputs_are_those_of_their_seed() -> None:
    first = make_inputs([X, IDS], {}, {"x": (2, 3, 5)}, seed=7)
    again = make_inputs([X, IDS], {}, {"x": (2, 3, 5)}, seed=7)
    other = make_inputs([X, IDS], {}, {"x": (2, 3, 5)}, seed=8)
    assert first["x"].shape == (2, 3, 5) and first["x"].dtype == np.float32
    assert set(first["ids"].tolist()) <= {0, 1} and first["ids"].dtype == np.int64
    assert np.array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])


def test_an_open_batch_is_as_small_as_its_bound() -> None:
    info = TensorInfo("x", "f32", ("N", 3), ((2, 8), (3, 3)))
    assert make_inputs([info], {}, {})["x"].shape == (2, 3)


def test_dims_of_one_name_are_one_extent() -> None:
    ids = TensorInfo("ids", "i64", ("N", "T"), ((0, None), (0, None)))
    mask = TensorInfo("mask", "i64", ("N", "T", "2*T"), ((0, None),) * 3)
    made = make_inputs([mask, ids], {"mask": np.zeros((2, 5, 10))}, {})
    assert made["ids"].shape == (2, 5)
    made = make_inputs([ids, mask], {}, {"mask": (3, 7, 14)})
    assert made["ids"].shape == (3, 7)
    unnamed = TensorInfo("x", "f32", ("?", "?"), ((0, None), (0, None)))
    with pytest.raises(CompileError, match="axis 1 is open"):
        make_inputs([unnamed, TensorInfo("y", "f32", ("?",), ((0, None),))], {}, {"y": (4,)})


def test_extents_follow_from_others() -> None:
    """From those that are given, a first dim that nobody gives, and the state's."""
    ids = TensorInfo("ids", "i64", ("N", "T"), ((2, None), (0, None)))
    mask = TensorInfo("mask", "i64", ("N", "P + T"), ((0, None), (0, None)))
    other = TensorInfo("other", "f32", ("2*T", "8//Q", "?"), ((0, None),) * 3)
    past = TensorInfo("past", "f32", (1, "P", 4), ((1, 1), (0, 9), (4, 4)))
    inputs, states = [ids, mask, other], [past]
    found = with_followers(inputs, {}, {"ids": (3, 5)}, states, {"past": (1, 2, 4)})
    assert found == {"ids": (3, 5), "mask": [3, 7]}
    found = with_followers(inputs, {"ids": np.zeros((3, 5))}, {}, states)
    assert found == {"mask": [3, 5]}
    assert with_followers([mask, ids], {}, {}, states) == {}
    tokens = TensorInfo("tokens", "i32", ("T",), ((1, 512),))
    assert with_followers([tokens, mask], {}, {"ids": (3, 4)}, states) == {
        "ids": (3, 4), "tokens": [1], "mask": [1, 1],
    }  # fmt: skip


def test_given_numbers_fill_fixed_shapes() -> None:
    made = make_inputs([IDS], {"ids": 5}, {})["ids"]
    assert made.tolist() == [5, 5, 5, 5] and made.dtype == np.int64


@pytest.mark.parametrize(
    ("given", "shapes", "message"),
    [
        ({}, {}, "input x: .*: axis 2 is open: give a shape with --shape x="),
        ({"y": 1}, {}, "no input is called 'y': inputs are x, ids"),
        ({}, {"x": (2, 4, 1)}, "axis 1 is 3, its shape says 4"),
        ({}, {"x": (2, 3)}, "has 3 dims, its shape 2"),
        ({"x": np.zeros((1, 3, 1), np.float32), "ids": "a"}, {}, "input 'ids' of i64: "),
    ],
)
def test_inputs_that_do_not_fit_are_named(
    given: dict[str, object], shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        make_inputs([X, IDS], given, shapes)  # type: ignore[arg-type]


# ---- engines ----


def softmax_model() -> aot.CompiledModule:
    builder = Builder()
    x = builder.input("x", "f32[N, 5]")
    builder.output("y", builder.op("softmax", x, axis=1))
    return aot.compile(builder.module())


def onnx_model(path: Path, op: str, output: str = "y") -> Path:
    from onnx import TensorProto, helper, save

    graph = helper.make_graph(
        [helper.make_node(op, ["x"], [output])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", 5])],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_model_is_compared_with_the_engine_of_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, shapes = onnx_model(tmp_path / "m.onnx", "Softmax"), {"x": (3, 5)}
    found = verify(softmax_model(), model, shapes=shapes)
    assert (found.engine, found.remark) == ("onnxruntime", "")
    assert f"agrees with onnxruntime {version('onnxruntime')} within" in verification_table(found)
    monkeypatch.setattr(oracles, "find_spec", lambda name: None)
    found = verify(softmax_model(), model, shapes=shapes)
    assert found.engine == "reference" and found.agrees
    assert verification_table(found).splitlines()[-1] == (
        "this can't see faults of the importer: ONNX Runtime is not installed, which would see "
        "it: pip install onnxruntime"
    )


def test_an_engine_that_can_not_read_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another version, for example: the reference interpreter is asked, and that is said."""
    import onnxruntime

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("opset 99 is under development\nand more")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fails)
    model, shapes = onnx_model(tmp_path / "m.onnx", "Softmax"), {"x": (3, 5)}
    found = verify(softmax_model(), model, shapes=shapes)
    assert (found.engine, found.agrees) == ("reference", True)
    reason = f"onnxruntime cannot run {model}: opset 99 is under development"
    assert found.remark == reason
    with pytest.raises(CompileError) as caught:
        verify(softmax_model(), model, shapes=shapes, against="onnxruntime")
    assert str(caught.value) == reason


def test_numbers_that_a_model_draws_are_each_engine_s_own(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    node = helper.make_node("RandomNormal", [], ["y"], shape=[4], seed=3.0)
    info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([node], "g", [], [info])
    path = tmp_path / "m.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = verify(aot.compile(path), path)
    assert (found.engine, found.agrees) == ("reference", True)
    assert found.remark == "its RandomNormal draws numbers, and each engine draws its own"


def test_roundings_that_were_asked_for_are_allowed(tmp_path: Path) -> None:
    """And an error that they don't explain is none that is allowed."""
    b = Builder()
    x = b.input("x", "f32[16, 64]")
    weights = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float32)
    b.output("y", b.op("matmul", x, weights))
    path = tmp_path / "m.ir"
    path.write_text(print_module(b.module()))
    ways = [{"storage": "fp16"}]
    if targets.load("host").sums_bf16:  # not every machine of ours can
        ways.append({"arithmetic": "bf16"})
    for asked in ways:
        module = aot.compile(path, targets=["host"], **asked)  # type: ignore[arg-type]
        found = verify(module, path, **asked)  # type: ignore[arg-type]
        assert found.agrees, asked
        assert all(o.tolerance < 0.05 for o in found.outputs), asked
        assert verify(module, path).outputs == found.outputs  # as its notes say
        (allowed,) = [o.tolerance for o in found.outputs]
        assert f" agrees with reference within {allowed:.3g}\n" in verification_table(found)
    narrow = aot.compile(path, targets=["host"], storage="fp16")
    merged = aot.merge({"a": narrow, "b": aot.compile(path)})
    assert verify(merged, path, entry="a").agrees
    assert verify(narrow, path, storage="fp32").agrees is False
    assert verify(aot.compile(path, storage="fp16", strip=True), path).agrees is False
    assert "precision" not in json.dumps(aot.inspect(aot.compile(path).to_bytes(), dedup=True))
    with pytest.raises(CompileError, match="storage is 'fp8', expected one of fp32, fp16"):
        verify(narrow, path, storage="fp8")


def test_noise_is_measured_where_it_is_asked_for(tmp_path: Path) -> None:
    path = rectified(tmp_path, 0.3)
    assert verify(aot.compile(path), path).outputs[0].noise is None
    (y,) = verify(aot.compile(path), path, noise=True).outputs
    assert y.noise is not None and 0 < y.noise < 1e-5 and y.tolerance == 1e-4


def test_what_is_exact_is_no_noise() -> None:
    """A mask is 0 or 1 in every engine, and 1 less itself is 0."""
    b = Builder()
    x = b.input("x", "f32[4, 64]")
    mask = b.op("cast", b.op("less", x, 0.0), to=DType.F32)
    b.output("y", b.op("mul", b.op("sub", 1.0, mask), np.float32(-3e38)))
    function = b.module().main
    values = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    (expected,) = run(function, [values])
    for asked in ({}, {"storage": "fp16"}, {"arithmetic": "bf16"}):
        (found,) = run(function, [values], disturbance=OtherRoundings(0, CompileOptions(**asked)))
        assert compare("y", found, expected).error < 1e-3


def test_the_command_offers_every_engine() -> None:
    assert tuple(oracles.ORACLES) == ORACLE_NAMES


@pytest.mark.parametrize("engine", ["reference", "onnxruntime"])
def test_both_engines_agree_and_disagree(tmp_path: Path, engine: str) -> None:
    module, shapes = softmax_model(), {"x": (3, 5)}
    right = verify(module, onnx_model(tmp_path / "a", "Softmax"), against=engine, shapes=shapes)
    wrong = verify(module, onnx_model(tmp_path / "b", "Sigmoid"), against=engine, shapes=shapes)
    assert right.agrees and not wrong.agrees
    assert right.outputs[0].shape == (3, 5)
    assert right.engine == engine


def test_other_outputs_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="the module's outputs are y; the model's are z"):
        verify(softmax_model(), onnx_model(tmp_path / "m", "Softmax", "z"))


def test_an_engine_s_own_failure_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(CompileError, match="onnxruntime cannot run .*m.onnx: [^\n]+$"):
        verify(softmax_model(), tmp_path / "m.onnx", against="onnxruntime")
    with pytest.raises(
        CompileError,
        match="no engine is called 'abacus': reference, onnxruntime, litert, torch, llama.cpp",
    ):
        verify(softmax_model(), tmp_path / "m.onnx", against="abacus")


def test_compiled_in_values_reach_the_engine(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "k", "y")]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "k"], ["y"])], "g", infos[:2], infos[2:]
    )
    path = tmp_path / "mul.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    values = {"k": [3, 4]}
    module = aot.compile(path, input_values=values)
    for engine in ("reference", "onnxruntime"):
        assert verify(module, path, against=engine, input_values=values).agrees
    assert not verify(module, path, input_values={"k": [3, 5]}).agrees
    with pytest.raises(CompileError, match="has an input 'k' that the module has not"):
        verify(module, path)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_other_engines_read_onnx_files_only(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "m.onnx"  # told by what it holds
    path.write_text('func @main(%x: f32[2]) -> ("y") {\n  return(%x)\n}\n')
    with pytest.raises(CompileError) as caught:
        check_onnx(engine, path)
    expected = f"{engine} cannot run {path}: it is text IR, expected an ONNX model"
    assert str(caught.value) == expected
    if engine == "onnxruntime":
        aot.compile(path).save(tmp_path / "m.aotm")
        with pytest.raises(CompileError) as caught:
            verify(tmp_path / "m.aotm", path, against=engine)
        assert str(caught.value) == expected
