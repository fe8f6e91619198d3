"""Several models in one compile: entry points, whose options are whose, and what they share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.cli import main as cli
from aot.errors import CompileError, UnsupportedError
from aot.ir.graph import Module
from aot.ir.text.printer import print_module

Array = np.ndarray[Any, Any]

DRAW = np.random.default_rng(9)
TARGETS = ("x86-64-v3", "vulkan-1.1")


def layers(*widths: int, rows: int | str = 96) -> Module:
    """Dense layers: rows of widths[0] through one after another, each a dispatch of its own."""
    b = aot.builder.Builder()
    x = b.input("x", f"f32[{rows}, {widths[0]}]")
    for inputs, outputs in pairwise(widths):
        weights = DRAW.standard_normal((inputs, outputs)).astype(np.float32) / inputs**0.5
        x = b.op("relu", b.op("matmul", x, b.constant(weights)), origin=f"layer{inputs}")
    b.output("y", x)
    return b.module()


def summing() -> Module:
    """A model with a state: the sum of all it was given."""
    b = aot.builder.Builder()
    past, x = b.input("past", "f32[4]"), b.input("x", "f32[4]")
    total = b.op("add", past, x)
    b.output("sum", total)
    b.output("twice", b.op("add", total, total))
    return b.module()


def shared(*models: Module, **options: Any) -> tuple[aot.CompiledModule, aot.CompiledModule]:
    """The models compiled together, and compiled apart and merged."""
    named = {f"m{n}": print_module(model).encode() for n, model in enumerate(models)}
    apart = {name: aot.compile(model, **options) for name, model in named.items()}
    return aot.compile(named, **options), aot.merge(apart)


def executables(module: aot.CompiledModule) -> int:
    return len(module.image.variants[0].executables)


def test_each_entry_point_computes_what_it_does_alone() -> None:
    widths = [[32 * n for n in range(first, last)] for first, last in ((2, 12), (4, 15), (7, 18))]
    models = [layers(*w, rows=384) for w in widths]
    together, merged = shared(*models, targets=["x86-64-v3"], optimize="size")
    assert [e.name for e in together.image.variants[0].entry_points] == ["m0", "m1", "m2"]
    for name, (first, *_) in zip(("m0", "m1", "m2"), widths, strict=True):
        x = DRAW.standard_normal((384, first)).astype(np.float32)
        with aot.load(together, entry=name) as one, aot.load(merged, entry=name) as other:
            np.testing.assert_array_equal(one({"x": x})["y"], other({"x": x})["y"])
    assert executables(together) <= executables(merged)
    code = [len(m.image.variants[0].code) for m in (together, merged)]
    assert code[0] <= code[1]


def test_variants_for_several_targets_have_all_entry_points() -> None:
    together, merged = shared(layers(64, 96), layers(96, 64, 32), targets=list(TARGETS))
    for variant, other in zip(together.image.variants, merged.image.variants, strict=True):
        assert variant.target == other.target
        assert [e.name for e in variant.entry_points] == ["m0", "m1"]
        assert len(variant.executables) <= len(other.executables)


def test_an_entry_point_takes_no_more_memory_than_alone() -> None:
    together, merged = shared(layers(64, 96, 128), layers(512, 2048, 256), targets=["x86-64-v3"])
    found = [[e.program.arena_bytes for e in m.image.variants[0].entry_points] for m in
             (together, merged)]  # fmt: skip
    assert found[0] == found[1]


def test_equal_models_have_one_kernel_each_layer() -> None:
    """What is one in a model stays so, and what is equal in both is there once, for nothing; what
    costs a hundredth may be one in both, that is not in one."""
    first, second = (layers(64, 96, 128, 160) for _ in range(2))
    alone = aot.compile(first, targets=["x86-64-v3"], optimize="speed")
    together, _ = shared(first, second, targets=["x86-64-v3"], optimize="speed")
    assert executables(together) <= executables(alone)
    assert len(together.image.variants[0].code) <= len(alone.image.variants[0].code)


def test_extents_of_one_name_are_each_model_s_own() -> None:
    together, _ = shared(layers(32, 48, rows="N"), layers(48, 32, rows="N"))
    for name, width, rows in (("m0", 32, 3), ("m1", 48, 7)):
        with aot.load(together, entry=name) as program:
            result = program({"x": np.ones((rows, width), np.float32)})["y"]
        assert result.shape == (rows, 80 - width)


def test_options_of_inputs_begin_with_the_model_s_name() -> None:
    module = aot.compile(
        {"a": layers(32, 48, rows="N"), "b": layers(48, 32, rows="N"), "sum": summing()},
        input_shapes={"a:x": (5, 32), "sum:past": (4,)},
        input_values={"b:x": np.ones((2, 48), np.float32)},
        states={"sum:past": "sum"},
    )
    found = {e.name: [i.name for i in e.inputs] for e in module.image.variants[0].entry_points}
    assert found == {"a": ["x"], "b": [], "sum": ["x"]}
    with aot.load(module, entry="sum") as program:
        ones = np.ones(4, np.float32)
        assert [program({"x": ones})["twice"][0] for _ in range(3)] == [2, 4, 6]
    with aot.load(module, entry="a") as program, pytest.raises(aot.RuntimeFailure):
        program({"x": np.ones((4, 32), np.float32)})


def test_the_same_models_give_the_same_bytes() -> None:
    models = [print_module(layers(64, 96)).encode(), print_module(layers(96, 128)).encode()]
    files = [aot.compile(dict(zip("ab", models, strict=True))).to_bytes() for _ in range(2)]
    assert files[0] == files[1]


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "none": ([], {}, "there is no model to compile"),
    "no name": ([layers(8, 8)], {}, "model 1 is no file and has no name; give a mapping from names "
        "to models"),
    "an input of no model": (
        {"a": layers(8, 8), "b": layers(8, 8)},
        {"input_shapes": {"x": (96, 8)}},
        "input_shapes: 'x' does not say which model it is for, expected a:x or b:x",
    ),
    "an entry name": (
        {"a": layers(8, 8), "b": layers(8, 8)},
        {"entry_name": "net"},
        "an entry name is for one model; name each of several as in FILE:NAME",
    ),
    "tuning": (
        {"a": layers(8, 8), "b": layers(8, 8)},
        {"tune": 1.0},
        "one model is tuned at a time; tune each with its own compile and the same tune cache, "
        "then compile them together with that cache",
    ),
    "a shape that does not fit": (
        {"a": layers(8, 8), "b": layers(8, 8)},
        {"input_shapes": {"b:x": (96, 9)}},
        "b: input 'x': dim 1 is 8 in the model, 9 is given",
    ),
    "an empty name": ({"": layers(8, 8)}, {}, "an entry point cannot be called '': expected "
        "printable text that neither begins nor ends with a space"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    models, options, message = WRONG[case]
    with pytest.raises(CompileError) as caught:
        aot.compile(models, **options)
    assert str(caught.value) == message


def test_files_are_called_as_they_are_or_as_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, widths in (("det", (16, 24)), ("cls", (24, 16))):
        Path(f"{name}.ir").write_text(print_module(layers(*widths)))
    assert (
        cli.main(["compile", "det.ir", "cls.ir:angle", "-o", "both.aotm", "--report", "r.html"])
        == 0
    )
    assert [e["name"] for e in aot.inspect("both.aotm")["variants"][0]["entry_points"]] == [
        "det", "angle"
    ]  # fmt: skip
    assert "angle" in Path("r.html").read_text()
    assert cli.main(["compile", "det.ir", "det.ir", "-o", "both.aotm"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "aotc: error: det.ir and det.ir both have an entry point 'det'; give one another name, as "
        "in det.ir:NAME"
    )
    assert cli.main(["compile", "det.ir", "gone.ir", "-o", "both.aotm"]) == 1
    assert "gone.ir" in capsys.readouterr().err.splitlines()[-1]


def test_messages_begin_with_the_model(tmp_path: Path) -> None:
    (tmp_path / "bad.ir").write_text("func @main(")
    (tmp_path / "good.ir").write_text(print_module(layers(8, 8)))
    with pytest.raises((CompileError, UnsupportedError)) as caught:
        aot.compile([tmp_path / "good.ir", tmp_path / "bad.ir"])
    assert str(caught.value).startswith(str(tmp_path / "bad.ir"))
