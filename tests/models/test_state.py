"""State that is kept between runs: a decoder's caches and a voice detector's memory, step by step.

ONNX Runtime, which is handed what it gave before, is the judge of the interpreter and of the
compiled file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aot
from aot.analysis.control import control_ops
from aot.cli import main as cli
from aot.cli.text import NamedState
from aot.driver.pipeline import read_model
from aot.errors import CompileError
from aot.ir.dims import symbols
from aot.ir.graph import Module
from aot.ir.interpreter.interpreter import run
from aot.ir.interpreter.memory import States
from aot.ir.states import state_variables
from aot.ir.verifier import verify
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from aot.tools.agreement import compare
from tests.support.generated_models import HEAD, HEADS, LAYERS, VOCABULARY, Array, Graph, decoder
from tests.support.models import feeds, model_path
from tests.support.onnx_models import ort_run, tensor_info
from tests.support.paths import ROOT

TOLERANCE = 1e-4
CAPACITY = 24
CACHES = [f"past_{what}_{n}" for n in range(LAYERS) for what in ("key", "value")]
TIES = {name: (name.replace("past", "present"), CAPACITY) for name in CACHES}
SHAPES: dict[str, tuple[int | str | None, ...]] = {CACHES[0]: (1, None, None, None)}

Step = Callable[[dict[str, Array]], dict[str, Array]]


@cache
def decoder_model() -> onnx.ModelProto:
    return decoder()


def with_state(
    source: Any,
    states: dict[str, tuple[str, int]],
    shapes: dict[str, tuple[int | str | None, ...]] | None = None,
) -> Module:
    """A model's graph after the passes that know no target."""
    options = CompileOptions(input_shapes=shapes or {}, states=states)
    module = read_model(source, options)
    run_passes(module, MODEL_PASSES, PassContext(CompileOptions(states=states)))
    verify(module)
    return module


@contextmanager
def interpreted(
    source: Any, states: dict[str, tuple[str, int]], shapes: Any = None
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """A step of a model on the interpreter, and a reset."""
    module, memory = with_state(source, states, shapes), States()
    names = module.main.result_names

    def step(given: dict[str, Array]) -> dict[str, Array]:
        results = run(module.main, given, module=module, states=memory)
        return dict(zip(names, results, strict=True))

    yield step, memory.clear


@contextmanager
def compiled(
    source: Any, states: dict[str, tuple[str, int]], shapes: Any = None
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """The same of a compiled file."""
    ties = {name: tie if tie[1] else tie[0] for name, tie in states.items()}
    module = aot.compile(source, states=ties, input_shapes=shapes)
    with aot.load(module) as program:
        yield program, program.reset


ENGINES = {"interpreter": interpreted, "compiled": compiled}


# a decoder with a growing cache


def empty_caches() -> dict[str, Array]:
    return {name: np.zeros((1, HEADS, 0, HEAD), np.float32) for name in CACHES}


def tokens_of(length: int, seed: int) -> Array:
    return np.random.RandomState(seed).randint(0, VOCABULARY, (1, length))


def check_logits(step: Step, tokens: Array, caches: dict[str, Array]) -> dict[str, Array]:
    """One step on both; gives ONNX Runtime's caches after it."""
    outputs = step({"tokens": tokens})
    logits, *presents = ort_run(decoder_model(), {"tokens": tokens, **caches})
    assert list(outputs) == ["logits"]
    agreement = compare("logits", outputs["logits"], logits)
    assert agreement.error <= TOLERANCE, (tokens.shape, agreement)
    return dict(zip(CACHES, presents, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("prompt", [1, 2, 7, 16, CAPACITY])
def test_decoding_with_kept_caches(engine: str, prompt: int) -> None:
    """A prompt, then a token at a time up to the capacity."""
    with ENGINES[engine](decoder_model(), TIES, SHAPES) as (step, _):
        caches = check_logits(step, tokens_of(prompt, 1), empty_caches())
        for number in range(prompt, min(prompt + 5, CAPACITY)):
            caches = check_logits(step, tokens_of(1, number), caches)
        if prompt == 16:  # several at once, up to the very end
            caches = check_logits(step, tokens_of(CAPACITY - 21, 2), caches)
            assert caches[CACHES[0]].shape[2] == CAPACITY


@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_cache_refuses_and_a_reset_empties_it(engine: str) -> None:
    with ENGINES[engine](decoder_model(), TIES, SHAPES) as (step, reset):
        caches = check_logits(step, tokens_of(CAPACITY - 1, 1), empty_caches())
        for _ in range(2):
            with pytest.raises((CompileError, aot.RuntimeFailure)) as caught:
                step({"tokens": tokens_of(2, 3)})
            assert f'state "past_key_0" holds at most {CAPACITY}' in str(caught.value)
            assert "reset the program" in str(caught.value)
        caches = check_logits(step, tokens_of(1, 4), caches)  # what was refused left nothing behind
        reset()
        caches = check_logits(step, tokens_of(3, 5), empty_caches())
        check_logits(step, tokens_of(1, 6), caches)


def test_lengths_are_read_from_the_function() -> None:
    module = with_state(decoder_model(), TIES, SHAPES)
    variables = {v.name: v for v in state_variables(module.main)}
    assert sorted(variables) == sorted(CACHES)
    first = variables[CACHES[0]]
    assert first.dims == (1, HEADS, CAPACITY, HEAD)
    assert (str(first.length), str(first.next_length)) == ("P", "P + T")
    assert [v.name for v in module.main.inputs] == ["tokens"]
    assert module.main.result_names == ["logits"]


def test_no_step_copies_the_caches() -> None:
    """What a step makes does not grow with what it has been told before."""
    module = with_state(decoder_model(), TIES, SHAPES)
    context = PassContext(CompileOptions(states=TIES), targets.load("x86-64-v3"))
    run_passes(module, TARGET_PASSES, context)
    ops = list(control_ops(module.main))
    assert sum(op.name == "concat_alias" for op in ops) == len(CACHES)
    made = [v for op in ops if op.name == "dispatch" for v in op.results]
    assert made
    assert [v for v in made if any("P" in symbols(d) for d in v.type.dims)] == []

    data = aot.compile(decoder_model(), states=TIES, input_shapes=SHAPES).to_bytes()
    (variant,) = aot.inspect(data)["variants"]
    (entry,) = variant["entry_points"]
    assert not entry["instructions"].keys() & {"COPY", "FILL"}
    assert entry["state_bytes"] == len(CACHES) * HEADS * CAPACITY * HEAD * 4
    assert [s["name"] for s in entry["states"]] == CACHES


# a fixed state


SILERO = {"state": ("stateN", 0)}


@pytest.mark.models
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["silero_vad_16k", "silero_vad_16k_if"])
def test_a_voice_detector_keeps_its_memory(engine: str, name: str) -> None:
    """Twenty frames; in the middle the next recording begins."""
    shapes = {"state": (2, 1, 128)} if name.endswith("_if") else {}
    model = onnx.load(model_path(name))
    state = np.zeros((2, 1, 128), np.float32)
    with ENGINES[engine](model_path(name), SILERO, shapes) as (step, reset):
        for frame in range(20):
            given = {k: v for k, v in feeds(name, str(frame + 1)).items() if k != "state"}
            if frame == 11:
                state[:] = 0
                reset()
            outputs = step(given)
            output, state = ort_run(model, {**given, "state": state})
            assert list(outputs) == ["output"]
            assert compare("output", outputs["output"], output).error <= TOLERANCE, frame


@pytest.mark.models
def test_a_voice_detector_s_memory_is_not_copied() -> None:
    made = aot.compile(
        model_path("silero_vad_16k"), states={"state": "stateN"}, targets=["x86-64-v4"]
    )
    data = made.to_bytes()
    (variant,) = aot.inspect(data)["variants"]
    (entry,) = variant["entry_points"]
    assert entry["instructions"]["DISPATCH"] == 4
    assert not entry["instructions"].keys() & {"COPY", "FILL"}


# options


def test_a_state_is_no_value_and_its_capacity_positive() -> None:
    with pytest.raises(CompileError, match="input 'x' is given both a state and a value"):
        CompileOptions(states={"x": ("y", 0)}, input_values={"x": 1})
    with pytest.raises(CompileError, match="state 'x': max is -1, expected a positive number"):
        CompileOptions(states={"x": ("y", -1)})


def test_a_batch_that_is_open_is_to_be_bound() -> None:
    with pytest.raises(CompileError) as caught:
        with_state(decoder_model(), TIES)
    assert str(caught.value) == (
        "state 'past_key_0': dim 0 is B, which must be a number in memory that is kept: bind it, "
        "as in --input-shape 'past_key_0=1x4x?x16'"
    )


def masked() -> onnx.ModelProto:
    """x f32[1, T, 4] attends to what was before it and to itself; a mask f32[1, M] of all rows."""
    g = Graph(np.random.RandomState(50))
    rows = g.op("Concat", "past", g.op("MatMul", "x", g.weight(4, 4)), axis=1)
    g.named(rows, "present")
    scores = g.op("MatMul", "x", g.op("Transpose", rows, perm=[0, 2, 1]))
    hidden = g.op("Add", scores, g.op("Unsqueeze", "mask", g.constant([1])))
    g.named(g.op("MatMul", g.op("Softmax", hidden, axis=-1), rows), "y")
    infos = [
        tensor_info("x", [1, "T", 4]),
        tensor_info("mask", [1, "M"]),
        tensor_info("past", [1, "P", 4]),
    ]
    return g.model(infos, ["y", "present"])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_length_of_a_mask_is_checked_against_the_state(engine: str) -> None:
    model, random = masked(), np.random.RandomState(51)
    past = np.zeros((1, 0, 4), np.float32)
    with ENGINES[engine](model, {"past": ("present", 9)}) as (step, _):
        for length in (3, 1, 2):
            x = random.standard_normal((1, length, 4)).astype(np.float32)
            total = past.shape[1] + length
            with pytest.raises((CompileError, aot.RuntimeFailure), match="operands broadcast"):
                step({"x": x, "mask": np.zeros((1, total + 1), np.float32)})
            mask = random.uniform(-3, 0, (1, total)).astype(np.float32)
            outputs = step({"x": x, "mask": mask})
            y, past = ort_run(model, {"x": x, "mask": mask, "past": past})
            assert compare("y", outputs["y"], y).error <= TOLERANCE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("past=present", ("past", ("present", 0))),
        ("past=present:max=512", ("past", ("present", 512))),
        ("past:0=present:0", ("past:0", ("present:0", 0))),
        ("past:0=present:0:max=7", ("past:0", ("present:0", 7))),
    ],
)
def test_a_state_on_the_command_line(text: str, expected: object) -> None:
    assert NamedState().convert(text, None, None) == expected


def test_verifying_calls_several_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, module = tmp_path / "model.onnx", tmp_path / "model.aotm"
    onnx.save(masked(), path)
    shapes = ["--shape", "x=1x2x4", "--shape", "mask=1x2"]
    state = ["--state", "past=present:max=9"]
    assert cli.main(["compile", str(path), "-o", str(module), *state]) == 0
    assert cli.main(["inspect", str(module)]) == 0
    assert "state  past: f32[1, P<=9, 4]" in capsys.readouterr().out
    for source in ([str(path), *state], [str(module), "--model", str(path), *state]):
        assert cli.main(["verify", *source, *shapes, "--steps", "1"]) == 0
    assert cli.main(["verify", str(path), *state, *shapes]) == 1  # the mask's length is the first's
    assert "operands broadcast" in capsys.readouterr().err
    several = ["--shape", "x=1x3x4", "--shape", "x=1x1x4", "--shape", "x=1x2x4"]
    masks = ["--shape", "mask=1x3", "--shape", "mask=1x4", "--shape", "mask=1x6"]
    for more in (masks, ["--input-shape", "mask=1xP+n", "--input-shape", "x=1xnx4"]):
        more += ["--input-shape", "past=1xPx4"] if more is not masks else []
        for engine in ("reference", "onnxruntime"):
            command = ["verify", str(path), *state, *several, *more, "--against", engine]
            assert cli.main(command) == 0
            assert re.search(r"y +float32 +1x[123]x4 .* agrees\n", capsys.readouterr().out)
    assert cli.main(["verify", str(module), "--model", str(path), *shapes]) == 1
    assert "say which output it was compiled with (--state past=OUTPUT)" in capsys.readouterr().err
    assert cli.main(["verify", str(module), "--model", str(path), "--state", "x=y", *shapes]) == 1
    assert "the module keeps no state 'x'; its states are past" in capsys.readouterr().err


@pytest.mark.models
@pytest.mark.parametrize("engine", ["reference", "onnxruntime"])
def test_verifying_a_voice_detector(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--state", "state=stateN", "--against", engine, "--steps", "4"]
    assert cli.main(["verify", str(model_path("silero_vad_16k")), *options]) == 0
    assert re.search(rf"agrees with {engine}( \S+)? within 0.0001", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--state", "past"], "'past' is not PAST=PRESENT or PAST=PRESENT:max=N"),
        (["--state", "=present"], "'=present' is not PAST=PRESENT or PAST=PRESENT:max=N"),
        (["--state", "a=b:max=0"], "'a=b:max=0': max must be positive"),
        (["--state", "a=b", "--state", "a=c"], "--state is given twice for 'a'"),
    ],
)
def test_states_that_are_no_states(
    options: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(masked(), path)
    assert cli.main(["compile", str(path), "-o", str(tmp_path / "out.aotm"), *options]) == 2
    assert text in capsys.readouterr().err


# the sample


@pytest.mark.models
def test_sample_03_hears_when_somebody_speaks(tmp_path: Path) -> None:
    model_path("silero_vad_16k")  # fetched before, so that a failure to fetch says so
    result = subprocess.run(
        [sys.executable, ROOT / "samples" / "03-voice-activity" / "run.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    heard = re.findall(r"^(\w+): ((?:no )?speech) \(", result.stdout, re.M)
    assert heard == [
        ("beep", "no speech"),
        ("speech", "speech"),
        ("hiss", "no speech"),
        ("speech", "speech"),
        ("silence", "no speech"),
    ]
    assert "after a reset: the same again\n" in result.stdout
    assert "state kept: state: f32[2, 1, 128]" in result.stdout
