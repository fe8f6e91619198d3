"""The public Python interface as users write against it: types, names, notebooks, pickles."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.graph import Module
from tests.support.paths import ROOT

USES = """from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aot


def progress(stage: str, done: int, total: int) -> None:
    print(stage, done, total)


def main(image: NDArray[np.float32]) -> None:
    module: aot.CompiledModule = aot.compile(
        "model.onnx",
        targets=["android", "host"],
        input_shapes={"x": "1x3xHx224", "y": (1, "N", None)},
        states={"past": ("present", 512)},
        precision=aot.Precision(storage="fp16", arithmetic="f32"),
        tuning=aot.Tuning(seconds=10),
        debugging=aot.Debugging(disable=["fusion"]),
        resources=aot.Resources(cache=False),
        language_model=aot.LanguageModel(context=128),
        progress=progress,
        optimize="speed",
    )
    module.save(Path("model.aotm"))
    with aot.load("model.aotm", "auto", threads="auto") as program:
        outputs: dict[str, NDArray[Any]] = program({"x": image})
        print(program.target, program.device, program.skipped, outputs["y"].shape)
        program.reset()
    checked: aot.Verification = aot.verify("model.onnx.aotm", "model.onnx", device="cpu")
    print(checked.agrees, aot.inspect("model.aotm")["variants"])
    merged = aot.merge([module, "other.aotm"])
    aot.package("model.aotm", "source", "out")
    times = aot.bench(merged, device="cpu", runs=3, is_cold=True)
    print(times, [device.fits for device in aot.devices()], [t.name for t in aot.targets()])
    made: aot.Quantised = aot.quantize("model.onnx", "int8.onnx", [{"x": image}])
    print(made.layers, aot.explain_fusion("model.onnx"))
    pictures = aot.Pictures(mean=(127.5,), scale=(0.0078,), layout="nchw")
    aot.quantize("model.onnx", Path("int8.onnx"), "photos", pictures=pictures)
    try:
        aot.load("missing.aotm")
    except aot.RuntimeFailure as error:
        print(error.status)
    except (aot.CompileError, aot.UnsupportedError, aot.InternalError) as error:
        print(error)
    except aot.AotError as error:
        print(error)


def talk(language: aot.Program) -> NDArray[np.float32]:
    read: aot.TextVerification = aot.verify_text("chat.aotm", "chat.gguf", text="Once upon a time")
    print(read.agrees, read.found.divergence, read.found.same)
    chat = aot.Chat(language, system="Be brief.")
    print("".join(chat.reply("Hello")))
    chat.undo()
    chat.reset()
    for piece in aot.generate(language, "Once upon", max_tokens=8):
        print(piece)
    return aot.embed(language, ["one", "two"])


def build() -> aot.CompiledModule:
    graph = aot.builder.Builder()
    graph.output("y", graph.op("relu", graph.input("x", "f32[2, 3]")))
    return aot.compile(graph.module())
"""


@pytest.mark.parametrize(
    ("checker", "options", "said"),
    [
        ("mypy", ["--strict", "--no-error-summary"], ""),
        (
            "basedpyright",
            ["--level", "error", "--pythonpath", sys.executable],
            "0 errors, 0 warnings, 0 notes\n",
        ),
    ],
)
def test_a_script_that_uses_all_of_it_is_typed(
    checker: str, options: list[str], said: str, tmp_path: Path
) -> None:
    """mypy, and Pyright in the packaging that brings its own Node, both strict."""
    script = tmp_path / "uses.py"
    script.write_text("# pyright: strict\n" + USES)
    command = [sys.executable, "-m", checker, *options, str(script)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == (said, 0)
    used = {n.attr for n in ast.walk(ast.parse(USES)) if isinstance(n, ast.Attribute)}
    assert {n for n in aot.__all__ if not n.startswith("_")} <= used


def test_one_page_names_all_of_it() -> None:
    """The text that `help(aot)` begins with."""
    page = aot.__doc__ or ""
    words = set(re.findall(r"\w+", page))
    assert {name for name in aot.__all__ if not name.startswith("_")} <= words
    assert page.count("\n") <= 45


def test_all_names_are_there() -> None:
    for name in aot.__all__:
        assert getattr(aot, name) is not None
    assert dir(aot) == sorted(aot.__all__)


@pytest.fixture
def graph() -> Module:
    b = Builder()
    x = b.input("x<1>", "f32[N, 4]")
    b.output("y", b.op("relu", x))
    return b.module()


def test_shapes_may_be_text(graph: Module) -> None:
    by_text = aot.compile(graph, input_shapes={"x<1>": "8x4"}, targets=["x86-64-v2"])
    by_dims = aot.compile(graph, input_shapes={"x<1>": (8, 4)}, targets=["x86-64-v2"])
    assert by_text.to_bytes() == by_dims.to_bytes()
    with pytest.raises(aot.CompileError) as caught:
        aot.compile(graph, input_shapes={"x<1>": "8xx"})
    assert str(caught.value).startswith(
        "input_shapes: x<1> is '8xx', expected a shape such as 1x3xHx"
    )


def test_notebooks_show_tables(graph: Module) -> None:
    module = aot.compile(graph)
    with aot.load(module) as program:
        shown = program._repr_html_()
    assert "x&lt;1&gt;" in shown
    assert "x<1>" not in shown
    assert f"{len(module.to_bytes()):,} bytes" in module._repr_html_()
    for text in (shown, module._repr_html_()):
        assert text.startswith("<table>")
        assert text.endswith("</table>")


@pytest.mark.parametrize("by_path", [False, True])
def test_programs_can_be_pickled(graph: Module, tmp_path: Path, *, by_path: bool) -> None:
    module = aot.compile(graph)
    source: Any = module
    if by_path:
        source = tmp_path / "m.aotm"
        module.save(source)
    x = np.array([[-1, 2, -3, 4]], np.float32)
    with aot.load(source, threads=2) as program, pickle.loads(pickle.dumps(program)) as other:
        assert (other.threads, other.target) == (2, program.target)
        np.testing.assert_array_equal(other(x)["y"], program(x)["y"])
    if by_path:
        pickled = pickle.dumps(program)
        source.unlink()
        with pytest.raises(aot.RuntimeFailure, match=r"m\.aotm"):
            pickle.loads(pickled)


def test_a_pickle_has_the_state() -> None:
    b = Builder()
    before = b.op("state", variable="total", dtype="f32", shape=[1])
    after = b.op("add", before, b.input("x", "f32[1]"))
    b.op("assign", before, after)
    b.output("y", after)
    one = np.ones(1, np.float32)
    with aot.load(aot.compile(b.module())) as program:
        program({"x": one})
        program({"x": one})
        with pickle.loads(pickle.dumps(program)) as other:
            assert other({"x": one})["y"] == 3
        assert program({"x": one})["y"] == 3


def test_bench_times_a_module(graph: Module) -> None:
    module = aot.compile(graph)
    times = aot.bench(module, shapes={"x<1>": (2, 4)}, runs=3, seconds=0, profile=False)
    assert times["median_ms"] > 0
    cold = aot.bench(module.to_bytes(), shapes={"x<1>": (2, 4)}, runs=2, is_cold=True)
    assert cold["cold"]["warm"]["rounds"] == 2
    assert cold["cold"]["warm"]["total_ms"] > 0
