"""Candidates: which there are, and that every one of them computes what the plan's choice does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import aot
from aot.analysis.cost.candidates import (
    Choice,
    Run,
    admits,
    candidates,
    choice_of,
    modelled_cost,
    runs_of,
    schedule_with,
)
from aot.analysis.tuning import Tuning
from aot.base.records import dataclass
from aot.builder import Builder
from aot.driver import pipeline
from aot.ir.clone import clone_function
from aot.ir.graph import Function, Module
from aot.ir.interpreter.interpreter import run
from aot.kernels.ir.verifier import verify
from aot.kernels.lowering import lower
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.runtime import loader
from aot.target.model import Target
from aot.target.selection import load
from aot.tuning.tuner import Tuned
from tests.support.graphs import MODEL_KINDS, modules, random_inputs
from tests.support.random_graphs import Graph, difference, graphs
from tests.support.runtime_api import library_path

RNG = np.random.default_rng(5)
TARGETS = ("x86-64-v4", "x86-64-v3", "x86-64-v3-128", "armv7-neon", "riscv64-v", "vulkan-1.1")
FEW = settings(max_examples=15, suppress_health_check=list(HealthCheck))
Pick = Callable[[Sequence[Choice]], Choice]


@pytest.fixture(autouse=True)
def use_built_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))


def weight(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-0.3, 0.3, shape).astype(np.float32)


def matmul(rows: object, columns: int = 40) -> Module:
    b = Builder()
    x = b.input("x", f"f32[{rows}, 24]")
    b.output("y", b.op("tanh", b.op("matmul", x, weight(24, columns))))
    return b.module()


def convolutions(extent: object, group: int = 1, kernel: int = 3, stride: int = 1) -> Module:
    """A convolution that reads and makes channels last."""
    b = Builder()
    x = b.input("x", f"f32[1, 8, {extent}, {extent}]")
    for size, groups, step in ((1, 1, 1), (kernel, group, stride), (1, 1, 1)):
        w = weight(32, (8 if x.type.dims[1] == 8 else 32) // groups, size, size)
        pads = (size // 2,) * 4
        attrs = {"strides": (step, step), "pads": pads, "dilations": (1, 1), "group": groups}
        x = b.op("relu", b.op("conv", x, w, **attrs))
    b.output("y", x)
    return b.module()


def pooling() -> Module:
    b = Builder()
    x = b.op("relu", b.input("x", "f32[1, 8, 9, 13]"))
    x = b.op(
        "conv", x, weight(40, 8, 1, 1), strides=(1, 1), pads=(0,) * 4, group=1, dilations=(1, 1)
    )
    pooled = b.op("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))
    b.output("y", pooled)
    return b.module()


MODULES: dict[str, Callable[[], Module]] = {
    "matmul": lambda: matmul(29),
    "open rows": lambda: matmul("N"),
    "narrow": lambda: matmul(5, 3),
    "3x3": lambda: convolutions(11),
    "open 3x3": lambda: convolutions("N"),
    "depthwise": lambda: convolutions(11, group=32),
    "groups": lambda: convolutions(9, group=4),
    "strided": lambda: convolutions(9, stride=2),
    "pooling": pooling,
}


def compiled_with(module: Module, pick: Pick, target: str, **options: Any) -> aot.CompiledModule:
    """The module with the choice that `pick` takes of each executable's candidates."""

    @dataclass(frozen=True)
    class Picked(Tuning):
        def find(self, function: Function, runs: Sequence[Run], target: Target) -> Choice | None:
            found = candidates(function, runs, target, has_winograd=True)
            assert len(set(found)) == len(found) and found[0] == choice_of(function, target)
            chosen = pick(found)
            assert admits(function, chosen, target, has_winograd=True)
            return chosen

    class Tuner:
        tuned = Tuned()

        def tune(self, module: Module, context: PassContext) -> Tuning:
            return Picked("", {"": Choice(())})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_tuner", lambda *_: Tuner())
        return aot.compile(module, targets=[target], **options)


def check(made: aot.CompiledModule, module: Module, inputs: dict[str, Any]) -> None:
    expected = run(module.main, inputs)
    with aot.load(made) as program:
        found = list(program(inputs).values())
    problem = difference(module.main, inputs, expected, found)
    assert not problem, problem


@pytest.mark.parametrize("name", MODULES)
def test_every_candidate_computes_the_same(name: str) -> None:
    """A few at random of each executable, and the first ones, which are what tuning begins with."""
    module = MODULES[name]()
    inputs = random_inputs(module.main)
    chance = random.Random(1)
    picks: list[Pick] = [lambda found, n=n: found[min(n, len(found) - 1)] for n in range(3)]
    picks += [chance.choice] * 5
    for pick in picks:
        check(compiled_with(module, pick, "x86-64-v3"), module, inputs)


def final(module: Module, target: Target, **options: Any) -> Module:
    """The module as tuning sees it."""
    context = PassContext(CompileOptions(**options), target)
    names = [step.name for step in TARGET_PASSES]
    steps = TARGET_PASSES[: names.index("apply-tuning")]
    run_passes(module, (*MODEL_PASSES, *steps), context)
    return module


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODULES)
def test_every_candidate_has_a_kernel(name: str, target: str) -> None:
    machine = load(target)
    module = final(MODULES[name](), machine)
    count = 0
    for function in module.executables:
        runs = runs_of(module)[function.name]
        found = candidates(function, runs, machine, has_winograd=True)
        for choice in found[:12] + found[-3:]:
            made = clone_function(function)
            made.schedule = schedule_with(made, choice, machine)
            assert choice_of(made, machine) == choice
            verify(lower(made, machine))
            count += 1
    assert count > len(module.executables)


def test_the_order_is_by_the_model_the_best_of_each_width_first() -> None:
    machine = load("x86-64-v4")
    module = final(matmul(60, 128), machine)
    (function,) = module.executables
    runs = runs_of(module)[function.name]
    found = candidates(function, runs, machine, has_winograd=True)
    widths = [choice.tiles[0][1] for choice in found]
    assert set(widths[1:6]) == {16, 32, 48, 64} | {widths[5]}

    def cost(choice: Choice) -> float:
        made = clone_function(function)
        made.schedule = schedule_with(made, choice, machine)
        return modelled_cost(made, runs, machine)

    for width in set(widths):
        costs = [cost(c) for c in found[1:] if c.tiles[0][1] == width]
        assert costs == sorted(costs)


def test_what_is_never_admitted() -> None:
    machine = load("x86-64-v3")
    module = final(convolutions(11), machine)
    functions = {choice_of(f, machine).algorithm: f for f in module.executables}
    plain = functions[""]
    (own,) = choice_of(plain, machine).tiles
    for tiles, algorithm in (
        ((), ""),
        ((own, own), ""),
        (((1, 12),), ""),  # no whole vectors
        (((0, 16),), ""),
        (((16, 64),), ""),  # more sums than registers
        ((own,), "direct"),
        ((own,), "winograd"),
    ):
        choice = Choice(tiles, algorithm)
        assert not admits(plain, choice, machine, has_winograd=True), choice
    other = functions.get("direct") or functions["winograd"]
    winograd = next(
        choice
        for choice in candidates(other, runs_of(module)[other.name], machine, has_winograd=True)
        if choice.algorithm == "winograd"
    )
    assert admits(other, winograd, machine, has_winograd=True)
    other.schedule = schedule_with(other, Choice(((4, 16),), "direct"), machine)
    assert not admits(other, winograd, machine, has_winograd=False)


@FEW
@given(graphs(), st.integers(0, 9), st.sampled_from(("host", "x86-64-v2")))
def test_random_graphs(graph: Graph, seed: int, target: str) -> None:
    try:
        made = compiled_with(graph.module, random.Random(seed).choice, target)
    except aot.UnsupportedError:
        assume(False)
    check(made, graph.module, graph.inputs(seed))


@FEW
@given(modules(kinds=MODEL_KINDS), st.integers(0, 9), st.sampled_from(("host", "x86-64-v3-128")))
def test_random_graphs_of_symbolic_dims(module: Module, seed: int, target: str) -> None:
    made = compiled_with(module, random.Random(seed).choice, target, optimize="size")
    check(made, module, random_inputs(module.main))
