"""Tuning: what is chosen of what is measured, what is remembered, and what becomes of a runner that
fails. Times are told, so that no test depends on a clock.
"""

from __future__ import annotations

import json
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.analysis.cost.candidates import Choice
from aot.builder import Builder
from aot.cli.main import main
from aot.errors import CompileError, TuningWarning
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.runtime import loader
from aot.tuning.cache import TuningCache, compiler_id
from aot.tuning.runner import CommandRunner, RunnerError
from tests.support.models import feeds, model_path, reference
from tests.support.paths import SUPPORT
from tests.support.runtime_api import library_path
from tests.support.tuning_runners import ToldRunner

TARGET = "x86-64-v3"
SCRIPT = SUPPORT / "tuning_runners.py"
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def use_built_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))


def product() -> Module:
    """One contraction, whose plan on x86-64-v3 is 6x16."""
    b = Builder()
    x = b.input("x", "f32[96, 64]")
    b.output("y", b.op("relu", b.op("matmul", x, RNG.standard_normal((64, 96), np.float32))))
    return b.module()


def convolution(extent: object = 16) -> Module:
    """A 3x3 convolution that may be computed in two ways, between others."""
    b = Builder()
    x = b.input("x", f"f32[1, 16, {extent}, 16]")
    channels = 16
    for size in (1, 3, 1):
        weight = RNG.uniform(-0.1, 0.1, (64, channels, size, size)).astype(np.float32)
        channels, pads = 64, (size // 2,) * 4
        x = b.op("conv", x, weight, strides=(1, 1), pads=pads, dilations=(1, 1), group=1)
    b.output("y", x)
    return b.module()


def tuned(
    monkeypatch: pytest.MonkeyPatch,
    runner: Callable[..., list[float]],
    module: Module,
    cache: Path,
    **options: Any,
) -> aot.CompiledModule:
    """The module, tuned with what `runner` tells."""
    monkeypatch.setattr(CommandRunner, "of", staticmethod(lambda _: runner))
    options = {"targets": [TARGET], "tune": 1000.0, **options}
    return aot.compile(module, tune_cache=cache, **options)


def facts(made: aot.CompiledModule) -> Mapping[str, Any]:
    found: Mapping[str, Any] = made.stats["variants"][0]["tuning"]
    return found


def best_of(cache: Path) -> Choice:
    """Of the last executable, by its text."""
    *_, line = TuningCache(cache).lines.values()
    return line.best


def plain(module: Module) -> bytes:
    return aot.compile(module, targets=[TARGET]).to_bytes()


def check_results(made: aot.CompiledModule, module: Module) -> None:
    shape = [d if isinstance(d, int) else 16 for d in module.main.inputs[0].type.dims]
    x = RNG.standard_normal(shape).astype(np.float32)
    with aot.load(made) as program:
        (found,) = program({"x": x}).values()
    (expected,) = run(module.main, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# ---- what is chosen ----


def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, cache = product(), tmp_path / "t.jsonl"
    runner = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    made = tuned(monkeypatch, runner, module, cache)
    assert best_of(cache) == Choice(((4, 16),))
    assert facts(made)["changed"] == 1
    assert facts(made)["gain"] == pytest.approx(0.5)
    assert made.to_bytes() != plain(module)
    check_results(made, module)


def test_the_other_algorithm_may_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, cache = convolution(), tmp_path / "t.jsonl"
    monkeypatch.setattr("aot.tuning.tuner.MOST", 6)
    for way in ("direct", "winograd"):
        cache.unlink(missing_ok=True)
        runner = ToldRunner(lambda name, _, way=way: 0.5 if way in name else 1.0)
        made = tuned(monkeypatch, runner, module, cache)
        (best,) = {line.best.algorithm for line in TuningCache(cache).lines.values()} - {""}
        assert best == way
        check_results(made, module)
    cache.unlink()
    runner = ToldRunner(lambda name, _: 0.5 if "winograd" in name else 1.0)
    tuned(monkeypatch, runner, module, cache, winograd=False)
    assert {line.best.algorithm for line in TuningCache(cache).lines.values()} == {"", "direct"}


@pytest.mark.parametrize(
    ("time", "again"),
    [
        # within the noise that two turns of one show
        (lambda name, _: 0.9 if name == "4x16" else 1.0, 1.2),
        # too little to be worth it
        (lambda name, _: 0.985 if name == "4x16" else 1.0, 1.0),
        # once, and never again
        (lambda name, call: 0.5 if name == "4x16" and call == 1 else 1.0, 1.0),
        # every other time
        (lambda name, call: (1.3, 0.5)[call % 2] if name == "4x16" else 1.0, 1.0),
    ],
)
def test_noise_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, time: Callable[..., float], again: float
) -> None:
    module, cache = product(), tmp_path / "t.jsonl"
    made = tuned(monkeypatch, ToldRunner(time, again), module, cache)
    assert facts(made)["changed"] == 0 and facts(made)["measured"] > 0
    assert made.to_bytes() == plain(module)


def test_what_takes_most_has_its_turn_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And no second turn before the others had their first; with no time left, none has one."""
    b = Builder()
    for name, size in (("small", 40), ("large", 200)):
        x = b.input(name, f"f32[{size}, 64]")
        weight = RNG.standard_normal((64, size), np.float32)
        b.output(f"{name}_out", b.op("matmul", x, weight))
    module = b.module()
    now = [0.0]
    runner = ToldRunner(lambda name, _: 1.0)

    def timed(*given: Any) -> list[float]:
        now[0] += 10
        return runner(*given)

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("aot.tuning.session.copies_of", lambda *_: None)
    made = tuned(
        monkeypatch, timed, module, tmp_path / "t.jsonl", disable=["despecialise"], tune=15
    )
    lines = TuningCache(tmp_path / "t.jsonl").lines.values()
    assert [line.what for line in lines] == [
        "matmul -> f32[200, 200]",
        "matmul -> f32[40, 40]",
    ]
    assert len(runner.calls) == 2 and facts(made)["executables"] == 2


# ---- what is remembered ----


def test_the_same_cache_gives_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is measured with a file alone, nor where neither is given."""
    module, cache = product(), tmp_path / "t.jsonl"
    before = plain(module)
    runner = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    made = tuned(monkeypatch, runner, module, cache)
    calls, text = len(runner.calls), cache.read_bytes()
    again = aot.compile(module, targets=[TARGET], tune_cache=cache)
    assert again.to_bytes() == made.to_bytes()
    assert facts(again)["measured"] == 0 and facts(again)["known"] == 1
    assert plain(module) == before
    assert len(runner.calls) == calls and cache.read_bytes() == text


def test_without_a_file_it_is_kept_beside_compiled_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = product()
    runner = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    monkeypatch.setattr(CommandRunner, "of", staticmethod(lambda _: runner))
    options: dict[str, Any] = {"targets": [TARGET], "cache_dir": tmp_path}
    made = aot.compile(module, tune=1000, **options)
    assert (tmp_path / "tuning.jsonl").is_file()
    assert aot.compile(module, tune=0, **options).to_bytes() == made.to_bytes()
    assert aot.compile(module, **options).to_bytes() == plain(module) != made.to_bytes()


def test_a_later_compile_measures_what_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, cache = product(), tmp_path / "t.jsonl"
    runner = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    first = tuned(monkeypatch, runner, module, cache)
    names = [name for call in runner.calls for name in call]
    assert len(set(names)) == 1 + facts(first)["measured"] > 9
    calls = len(runner.calls)
    second = tuned(monkeypatch, runner, module, cache)
    assert len(runner.calls) == calls and facts(second)["measured"] == 0
    assert second.to_bytes() == first.to_bytes()


def test_an_interrupt_keeps_what_was_learnt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, cache = product(), tmp_path / "t.jsonl"
    told = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)

    def interrupted(*given: Any) -> list[float]:
        if cache.exists() and best_of(cache) == Choice(((4, 16),)):
            raise KeyboardInterrupt
        return told(*given)

    with pytest.raises(KeyboardInterrupt):
        tuned(monkeypatch, interrupted, module, cache)
    assert best_of(cache) == Choice(((4, 16),))
    assert not list(tmp_path.glob("*.tmp"))


def test_a_choice_that_is_not_admitted_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file is no more than a hint: what it says may be of any origin."""
    module, cache = product(), tmp_path / "t.jsonl"
    runner = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    tuned(monkeypatch, runner, module, cache)
    text = cache.read_text()
    best = '"best": {"tiles": [[4, 16]]}'
    wrong = ("[[400, 16]]", "[[4, 24]]", "[]", "[[4, 16], [4, 16]]")
    for tiles in (*wrong, '[[4, 16]], "algorithm": "winograd"'):
        other = text.replace(best, f'"best": {{"tiles": {tiles}}}')
        assert other != text
        cache.write_text(other)
        made = aot.compile(module, targets=[TARGET], tune_cache=cache)
        assert made.to_bytes() == plain(module), tiles


def test_another_target_or_extent_is_another_executable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, cache = product(), tmp_path / "t.jsonl"
    runner = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    tuned(monkeypatch, runner, module, cache)
    other = aot.compile(module, targets=["x86-64-v2"], tune_cache=cache)
    assert facts(other)["known"] == 0
    b = Builder()
    x = b.input("x", "f32[97, 64]")
    b.output("y", b.op("relu", b.op("matmul", x, RNG.standard_normal((64, 96), np.float32))))
    assert facts(aot.compile(b.module(), targets=[TARGET], tune_cache=cache))["known"] == 0


# ---- runners ----


def broken(kind: str) -> list[str]:
    """A command that fails in one way, as words."""
    scripts = {
        "fails": "import sys; sys.exit('no device is attached')",
        "says nothing": "",
        "says rubbish": "print('hello')",
        "says other JSON": "print('{\"profile\": 3}')",
        "says too few": 'print(\'{"profile": {"launches": [{"kind": "dispatch", "min_ms": 1}]}}\')',
        "says no times": 'print(\'{"profile": {"launches": [{"kind": "dispatch", '
        '"min_ms": "1"}]}}\')',
        "takes too long": "import time; time.sleep(60)",
    }
    return [sys.executable, "-c", scripts[kind]]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("fails", "no device is attached"),
        ("says nothing", "expected the JSON of aot-run --profile, got nothing"),
        ("says rubbish", "expected the JSON of aot-run --profile, got 'hello'"),
        ("says other JSON", "expected the JSON of aot-run --profile, got "),
        ("says no times", "expected the JSON of aot-run --profile, got "),
        ("says too few", "the runner timed 1 dispatches of "),
        ("takes too long", "took more than"),
    ],
)
def test_a_runner_that_fails_leaves_the_plan_its_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, message: str
) -> None:
    module = product()
    runner = CommandRunner(tuple(broken(kind)), grace=-999.5 if "long" in kind else 30)
    with pytest.warns(TuningWarning, match="nothing is tuned for x86-64-v3: .*" + message) as said:
        made = tuned(monkeypatch, runner, module, tmp_path / "t.jsonl")
    assert len(said) == 1
    assert made.to_bytes() == plain(module)


def test_a_runner_that_never_works_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    b = Builder()
    for size in (40, 80, 120, 160):
        x = b.input(f"x{size}", f"f32[{size}, 64]")
        weight = RNG.standard_normal((64, size), np.float32)
        b.output(f"y{size}", b.op("matmul", x, weight))
    calls = []

    def refuses(*given: Any) -> list[float]:
        calls.append(given)
        raise RunnerError("no")

    with pytest.warns(TuningWarning) as said:
        tuned(monkeypatch, refuses, b.module(), tmp_path / "t", disable=["despecialise"])
    assert len(calls) == 2
    assert "nothing is tuned for x86-64-v3: no" in str(said[-1].message)


def test_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command in place of aot-run, a cache that is a file, and the statistics."""
    from aot.ir.text.printer import print_module

    model = tmp_path / "m.ir"
    model.write_text(print_module(product()))
    monkeypatch.setenv("AOT_TEST_TIMES", json.dumps({"4x16": 0.25}))
    cache, stats = tmp_path / "t.jsonl", tmp_path / "stats.json"
    command = ["compile", str(model), "--target", TARGET, "--tune-cache", str(cache)]
    runner = f"'{sys.executable}' '{SCRIPT}'"
    options = ["--tune", "3", "--tune-runner", runner, "--stats", str(stats)]
    assert main([*command, "-o", str(tmp_path / "a.aotm"), *options]) == 0
    assert best_of(cache) == Choice(((4, 16),))
    section = json.loads(stats.read_text())["variants"][0]["tuning"]
    assert section["changed"] == 1 and section["gain"] == pytest.approx(0.75)
    assert main([*command, "-o", str(tmp_path / "b.aotm")]) == 0
    assert (tmp_path / "a.aotm").read_bytes() == (tmp_path / "b.aotm").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune_runner": "x"}, "a tune runner is given, but no seconds to tune in"),
        ({"tune": -1}, "tune is -1, expected seconds, 0 or more"),
        ({"tune": 1, "tune_runner": "'x"}, 'the tune runner "\'x" is no command: no closing'),
        ({"tune": 1, "tune_runner": " "}, "the tune runner is an empty command"),
        ({"tune_cache": "/nowhere/t"}, "cannot read /nowhere/t: no such file; --tune SECONDS"),
        ({"tune_cache": "/"}, "cannot read /: is a directory"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        aot.compile(product(), targets=[TARGET], **options)


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.warns(TuningWarning, match="cannot run nowhere-to-be-found: no such file"):
        aot.compile(
            product(),
            targets=[TARGET],
            tune=5,
            tune_runner="nowhere-to-be-found",
            tune_cache=tmp_path / "t",
        )


# ---- the real thing ----


@pytest.mark.parametrize("has_place", [True, False])
def test_this_machine_measures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_place: bool
) -> None:
    """With the native tool, whatever wins: all executables of a graph have their times, in place or
    by themselves, where extents are open too."""
    from tests.support.runtime_build import build_tool

    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    monkeypatch.setenv("AOT_RUN", str(tool))
    monkeypatch.setattr("aot.tuning.tuner.MOST", 2)
    if not has_place:
        monkeypatch.setattr("aot.tuning.session.copies_of", lambda *_: None)
    module, cache = convolution(extent="H"), tmp_path / "t.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = aot.compile(module, targets=["x86-64-v2"], tune=100, tune_cache=cache)
    assert facts(made)["measured"] == 2 * facts(made)["executables"] > 2
    for line in TuningCache(cache).lines.values():
        assert line.compiler == compiler_id() and min(line.ratios.values()) > 0
    check_results(made, module)


def test_a_model_that_cannot_run_as_it_is_is_measured_in_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It refuses random inputs, or runs too long: each executable has a module of its own."""
    told = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    seen: list[Path] = []

    def picky(module: Path, options: Sequence[str], *given: Any) -> list[float]:
        seen.append(module)
        if "--random" in options:
            raise RunnerError("an index is out of range")
        return told(module, options, *given)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned(monkeypatch, picky, product(), tmp_path / "t.jsonl")
    assert best_of(tmp_path / "t.jsonl") == Choice(((4, 16),))
    assert len(seen) == len(told.calls) + 1


def test_a_model_that_keeps_something_is_measured_in_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Copies of it would change what the next ones read."""
    b = Builder()
    x = b.input("past", "f32[32, 64]")
    b.output(
        "present", b.op("tanh", b.op("matmul", x, RNG.uniform(-1, 1, (64, 64)).astype(np.float32)))
    )
    told = ToldRunner(lambda name, _: 0.5 if name == "4x16" else 1.0)
    seen: set[str] = set()

    def noting(module: Path, options: Sequence[str], *given: Any) -> list[float]:
        seen.update(options)
        return told(module, options, *given)

    states = {"past": "present"}
    tuned(monkeypatch, noting, b.module(), tmp_path / "t.jsonl", states=states)
    assert best_of(tmp_path / "t.jsonl") == Choice(((4, 16),))
    assert "--random" not in seen


@pytest.mark.models
def test_a_model_tuned_at_random_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shapes = {name: array.shape for name, array in feeds("ppocr_cls").items()}
    monkeypatch.setattr("aot.tuning.tuner.MOST", 1)
    monkeypatch.setattr("aot.tuning.session.ROUNDS", 1)
    runner = ToldRunner(lambda name, _: 0.5 + zlib.crc32(name.encode()) / 2**33 if name else 1.0)
    model, cache = model_path("ppocr_cls"), tmp_path / "t.jsonl"
    made = tuned(monkeypatch, runner, model, cache, input_shapes=shapes, targets=["host"])
    assert facts(made)["changed"] > 5
    with aot.load(made) as program:
        found = program(feeds("ppocr_cls"))
    for name, expected in reference("ppocr_cls").items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
