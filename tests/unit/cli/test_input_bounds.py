"""Dims that the user bounds or takes in multiples: from --input-shape to what the runtime says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aot
from aot.cli import main as cli
from aot.tools.inspection import format_inspection
from tests.support.cpu_running import native_targets
from tests.support.onnx_models import graph_model, tensor_info

Array = np.ndarray[Any, Any]

# Two values that live at once, and a symbol that only the sum of two dims tells.
TEXT = """
func @main(%x: f32[N, 4, H], %past: f32[P, 4, H], %mask: f32[N + P]) -> ("y", "z") {
  %1 = relu(%x) : f32[N, 4, H]
  %2 = concat(%past, %1) {axis = 0} : f32[N + P, 4, H]
  %3 = reduce_sum(%2) {axes = [1, 2]} : f32[N + P, 1, 1]
  %4 = reshape(%3) {shape = [N + P]} : f32[N + P]
  %5 = mul(%4, %mask) : f32[N + P]
  return(%5, %2)
}
"""


def text_model() -> bytes:
    return TEXT.encode()


def onnx_model() -> onnx.ModelProto:
    """The same, as an exporter names the dims of a cache and its mask."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("Concat", ["past", "positive"], ["z"], axis=0),
        helper.make_node("ReduceSum", ["z", "axes"], ["sums"], keepdims=0),
        helper.make_node("Mul", ["sums", "mask"], ["y"]),
    ]
    inputs = [
        tensor_info("x", ["N", 4, "H"]),
        tensor_info("past", ["P", 4, "H"]),
        tensor_info("mask", ["total"]),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2])
    return graph_model(nodes, inputs, ["y", "z"], [axes])


SOURCES: list[Callable[[], Any]] = [text_model, onnx_model]
SHAPES = {"x": ("N<=3", None, "8*h<=64"), "past": ("?<=5", 4, "?"), "mask": ("N + P",)}


def feeds(n: int, p: int, h: int, h_past: int | None = None) -> dict[str, Array]:
    random = np.random.default_rng(n + 10 * p)
    return {
        "x": random.standard_normal((n, 4, h)).astype(np.float32),
        "past": random.standard_normal((p, 4, h if h_past is None else h_past)).astype(np.float32),
        "mask": random.standard_normal(n + p).astype(np.float32),
    }


def check(program: aot.Program, given: dict[str, Array]) -> None:
    z = np.concatenate([given["past"], np.maximum(given["x"], 0)])
    outputs = program(given)
    np.testing.assert_array_equal(outputs["z"], z)
    np.testing.assert_allclose(
        outputs["y"], z.astype(np.float64).sum((1, 2)) * given["mask"], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("source", SOURCES)
def test_shapes_within_the_bounds_run(source: Callable[[], Any]) -> None:
    with aot.load(aot.compile(source(), input_shapes=SHAPES)) as program:
        assert [(t.dims, t.bounds) for t in program.inputs] == [
            (("N", 4, "8*h"), ((0, 3), (4, 4), (0, 64))),
            (("P", 4, "8*h"), ((0, 5), (4, 4), (0, 64))),
            (("N + P",), ((0, 8),)),
        ]
        assert program.outputs[0].bounds == ((0, 8),)
        for n, p, h in ((1, 0, 8), (3, 5, 64), (0, 2, 16), (2, 3, 0)):
            check(program, feeds(n, p, h))


def test_a_sum_may_be_bounded() -> None:
    shapes = {**SHAPES, "mask": ("N + P<=6",)}
    with aot.load(aot.compile(text_model(), input_shapes=shapes)) as program:
        check(program, feeds(3, 3, 8))
        with pytest.raises(aot.RuntimeFailure) as caught:
            program(feeds(3, 4, 8))
        assert str(caught.value) == (
            "input 'mask': dim 0 must be at most 6: N + P is 7, expected at most 6; N is 3, axis 0 "
            'of input "x", P is 4, axis 0 of input "past"'
        )


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        (
            feeds(4, 0, 8),
            "shape",
            'input "x": expected shape [N, 4, 8*h], found [4, 4, 8]: axis 0, N, must be at most 3',
        ),
        (
            feeds(1, 6, 8),
            "shape",
            'input "past": expected shape [P, 4, 8*h], found [6, 4, 8]: axis 0, P, must be at '
            "most 5",
        ),
        (feeds(1, 1, 12, 8), "check", 'input "x": axis 2 is 12, expected a multiple of 8'),
        (
            feeds(1, 1, 16, 8),
            "check",
            'input "past": axis 2 is 8, expected 8*h = 16; h is 2, axis 2 of input "x"',
        ),
        (
            {**feeds(2, 3, 8), "mask": np.zeros(6, np.float32)},
            "check",
            'input "mask": axis 0 is 6, expected N + P = 5; N is 2, axis 0 of input "x", P is 3, '
            'axis 0 of input "past"',
        ),
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_other_shapes_are_refused_by_name(
    source: Callable[[], Any], given: dict[str, Array], status: str, message: str
) -> None:
    with aot.load(aot.compile(source(), input_shapes=SHAPES)) as program:
        with pytest.raises(aot.RuntimeFailure) as caught:
            program(given)
        assert (caught.value.status, str(caught.value)) == (status, message)
        check(program, feeds(1, 1, 8))


def test_a_dim_may_be_told_by_a_sum() -> None:
    """P stands alone in no input: it is what N leaves of the mask."""
    text = """
    func @main(%x: f32[N, 4], %mask: f32[N + P]) -> ("y") {
      %1 = fill {shape = [P, 4], value = f32[] <1.0>} : f32[P, 4]
      %2 = concat(%x, %1) {axis = 0} : f32[N + P, 4]
      %3 = reshape(%mask) {shape = [N + P, 1]} : f32[N + P, 1]
      %4 = mul(%2, %3) : f32[N + P, 4]
      return(%4)
    }
    """
    with aot.load(aot.compile(text.encode())) as program:
        x, mask = np.full((2, 4), 3, np.float32), np.arange(5, dtype=np.float32)
        wanted = np.concatenate([x, np.ones((3, 4))]) * mask[:, None]
        np.testing.assert_array_equal(program({"x": x, "mask": mask})["y"], wanted)
        with pytest.raises(aot.RuntimeFailure) as caught:
            program({"x": x, "mask": mask[:1]})
        assert str(caught.value) == (
            'input "mask": axis 0 is 1, expected N + P = 1; N is 2, axis 0 of input "x"'
        )


# Products of products: each but the last is in the arena while the next is computed.
CHAIN = """
func @main(%x: f32[N, W]) -> ("y") {
  %w = constant {value = f32[16, 16] <splat 0.0625>} : f32[16, 16]
  %1 = reshape(%x) {shape = [N*(W//16), 16]} : f32[N*(W//16), 16]
  %2 = matmul(%1, %w) : f32[N*(W//16), 16]
  %3 = matmul(%2, %w) : f32[N*(W//16), 16]
  %4 = matmul(%3, %w) : f32[N*(W//16), 16]
  return(%4)
}
"""


def test_bounds_bound_the_arena() -> None:
    targets = native_targets()[:1]  # rows in scratch are as long as vectors make them
    bounded = aot.compile(CHAIN.encode(), targets=targets, input_shapes={"x": ("N<=6", "16*w<=64")})
    static = aot.compile(CHAIN.encode(), targets=targets, input_shapes={"x": (6, 64)})
    scratch = min(e["scratch_bytes"] for e in _executables(bounded))
    (section,), (fixed,) = (module.stats["variants"] for module in (bounded, static))
    # one product of 6 * 64 floats is read while another is written
    assert section["arena_lower_bound_bytes"] == fixed["arena_lower_bound_bytes"] == 2 * 6 * 64 * 4
    assert section["arena_bytes"] >= section["arena_lower_bound_bytes"] + scratch
    with aot.load(bounded) as program:
        bound = program.arena_bound_bytes
        assert bound == 2 * 6 * 64 * 4
        for n, w, arena_bytes in ((1, 32, 256), (6, 64, bound), (2, 16, bound)):
            x = np.arange(n * w, dtype=np.float32).reshape(n, w)
            means = x.reshape(-1, 16).mean(1, keepdims=True)
            np.testing.assert_allclose(program({"x": x})["y"], means.repeat(16, 1), rtol=1e-5)
            assert program.arena_bytes == arena_bytes
    with aot.load(static) as program:  # with rows in scratch, whose extents are known here
        assert program.arena_bound_bytes == fixed["arena_bytes"] <= 1.2 * bound
    with aot.load(aot.compile(CHAIN.encode())) as program:
        assert program.arena_bound_bytes is None


def _executables(module: aot.CompiledModule) -> list[dict[str, Any]]:
    facts = aot.inspect(module.to_bytes())
    return list(facts["variants"][0]["executables"])


def test_inspect_shows_bounds() -> None:
    facts = aot.inspect(aot.compile(text_model(), input_shapes=SHAPES).to_bytes())
    (entry,) = facts["variants"][0]["entry_points"]
    assert entry["inputs"][0]["dims"] == [
        {"text": "N", "min": 0, "max": 3},
        4,
        {"text": "8*h", "min": 0, "max": 64},
    ]
    text = format_inspection(facts)
    assert "input  x: f32[N<=3, 4, 8*h<=64]" in text
    assert "input  mask: f32[N + P<=8]" in text
    chain = aot.compile(CHAIN.encode(), input_shapes={"x": ("N<=6", "16*w<=64")})
    facts = aot.inspect(chain.to_bytes())
    assert facts["variants"][0]["entry_points"][0]["arena_bound_bytes"] == 3072
    assert "arena at most 3,072 bytes for 2 buffers" in format_inspection(facts)
    facts = aot.inspect(aot.compile(CHAIN.encode()).to_bytes())
    assert facts["variants"][0]["entry_points"][0]["arena_bound_bytes"] is None
    assert "arena for 2 buffers" in format_inspection(facts)


def test_a_models_own_clipping_bounds_its_inputs() -> None:
    text = """
    func @main(%x: f32[T, 2]) -> ("y") {
      %1 = constant {value = f32[5, 1] <1.0, 2.0, 3.0, 4.0, 5.0>} : f32[5, 1]
      %2 = slice(%1) {starts = [0, 0], stops = [min(T, 5), 1], steps = [1, 1]} : f32[min(T, 5), 1]
      %3 = add(%x, %2) : f32[T, 2]
      return(%3)
    }
    """
    with aot.load(aot.compile(text.encode())) as program:
        assert program.inputs[0].bounds[0] == (0, 5)
        assert program.outputs[0].dims[0] == "T"
        with pytest.raises(aot.RuntimeFailure, match="axis 0, T, must be at most 5"):
            program({"x": np.zeros((6, 2), np.float32)})


def branching_model() -> onnx.ModelProto:
    """y is -x where x has more than eight rows, else relu(x)."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [op])], op, [], [onnx.ValueInfoProto(name=op)]
        )
        for op in ("Neg", "Relu")
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=0, end=1),
        helper.make_node("Greater", ["shape", "eight"], ["is_long"]),
        helper.make_node("Squeeze", ["is_long"], ["scalar"]),
        helper.make_node("If", ["scalar"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    eight = helper.make_tensor("eight", TensorProto.INT64, [1], [8])
    return graph_model(nodes, [tensor_info("x", ["N", 2])], ["y"], [eight])


def test_bounds_decide_what_depends_on_shapes() -> None:
    x = np.array([[-1, 2]], np.float32)
    with aot.load(aot.compile(branching_model())) as program:  # both branches are there
        assert program({"x": x})["y"].tolist() == [[0, 2]]
        assert program({"x": x.repeat(9, 0)})["y"].tolist() == [[1, -2]] * 9
    with aot.load(aot.compile(branching_model(), input_shapes={"x": ("N<=8", 2)})) as program:
        assert program({"x": x})["y"].tolist() == [[0, 2]]
    with aot.load(aot.compile(branching_model(), input_shapes={"x": ("N>=9", 2)})) as program:
        assert program({"x": x.repeat(9, 0)})["y"].tolist() == [[1, -2]] * 9
        with pytest.raises(aot.RuntimeFailure, match="axis 0, N, must be at least 9"):
            program({"x": x})


def test_an_input_that_leaves_nothing_is_refused() -> None:
    text = """
    func @main(%x: f32[N, 2]) -> ("y") {
      %1 = slice(%x) {starts = [3, 0], stops = [N, 2], steps = [1, 1]} : f32[max(N - 3, 0), 2]
      %2 = slice(%x) {starts = [0, 0], stops = [N - 4, 2], steps = [1, 1]} : f32[max(N - 4, 0), 2]
      %3 = range {size = N - 4} : i64[N - 4]
      %4 = gather(%2, %3) : f32[N - 4, 2]
      %5 = concat(%1, %4) {axis = 0} : f32[N + max(N - 3, 0) - 4, 2]
      return(%5)
    }
    """
    with aot.load(aot.compile(text.encode())) as program:
        x = np.arange(10, dtype=np.float32).reshape(5, 2)
        assert program({"x": x})["y"].tolist() == [[6, 7], [8, 9], [0, 1]]
        assert program({"x": x[:4]})["y"].tolist() == [[6, 7]]
        with pytest.raises(aot.RuntimeFailure) as caught:
            program({"x": x[:3]})
        assert caught.value.status == "check"
        assert str(caught.value).endswith('is -1; N is 3, axis 0 of input "x"')


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (1, "5<=?", None)}, "input 'x': dim 1 is 4, the bounds given for it are 5<=?"),
        ({"x": ("9<=N<=8", None, None)}, "shape of input 'x': no dim satisfies '9<=N<=8'"),
        ({"mask": ("A + B",)}, "dim 0 is A + B, which does not say what A is; bind it with"),
    ],
)
def test_impossible_bounds(shapes: dict[str, tuple[int | str | None, ...]], message: str) -> None:
    with pytest.raises(aot.CompileError) as caught:
        aot.compile(onnx_model(), input_shapes=shapes)
    assert message in str(caught.value)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, module = tmp_path / "m.ir", tmp_path / "m.aotm"
    model.write_text(TEXT, encoding="utf-8")
    compile_arguments = ["compile", str(model), "-o", str(module)]
    for name, dims in SHAPES.items():
        shape = ",".join("?" if dim is None else str(dim) for dim in dims)
        compile_arguments += ["--input-shape", f"{name}={shape}"]
    assert cli.main(compile_arguments) == 0
    assert cli.main(["inspect", str(module), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["variants"][0]["entry_points"][0]["inputs"][0]["dims"][0]["max"] == 3
    run = ["run", str(module), "--shape", "x=2x4x16", "--shape", "mask=4"]
    # what x says of h holds for past, and its first dim is as small as can be
    assert cli.main([*run, "--shape", "past=2x4x16"]) == 0
    assert cli.main([*run, "--shape", "past=2x4x24"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        'aotc: error: input "past": axis 2 is 24, expected 8*h = 16; h is 2, axis 2 of input "x"'
    )
    assert cli.main(["run", str(module), "--shape", "x=2x4x80", "--shape", "mask=4"]) == 1
    assert "axis 2, 8*h, must be at most 64" in capsys.readouterr().err
    assert cli.main(["run", str(module), "--shape", "x=2x4x16", "--shape", "mask=3"]) == 0
