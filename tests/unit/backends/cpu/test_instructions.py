"""Objects have no instruction outside of the features that their target lists: the loader compares
those with the CPU, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import aot
from aot.backends.cpu import llvm
from aot.backends.cpu.compile import compile_kernel
from aot.builder import Builder
from aot.ir.types import DType
from aot.target import files
from aot.target.model import Target
from tests.support.cpu_cases import access_cases
from tests.support.cpu_operators import operator_cases
from tests.support.cpu_running import target_of
from tests.support.disassembly import BINUTILS, excess
from tests.support.samples_module import samples_module

TARGETS = [n for n in files.names() if target_of(n).is_cpu and target_of(n).arch in BINUTILS]
# a target, and another one that lacks some of its features
LACKING = [
    ("x86-64-v3", "x86-64-v2"),
    ("x86-64-v4", "x86-64-v3"),
    ("x86-64-v3-vnni", "x86-64-v3"),
    ("x86-64-v4-vnni", "x86-64-v4"),
    ("aarch64-linux-dotprod", "aarch64-generic"),
    ("aarch64-linux-i8mm", "aarch64-linux-dotprod"),
    ("riscv64-v", "riscv64"),
]


def small_model() -> Any:
    """Products of floats and of bytes, halves, and what takes a vector apart."""
    rng = np.random.default_rng(1)
    b = Builder()

    def weights(dtype: str, *shape: int) -> Any:
        return b.constant(rng.integers(-9, 9, shape).astype(dtype))

    x = b.input("x", "f32[5, 48]")
    made = b.op("softmax", b.op("matmul", x, weights("float32", 48, 40)), axis=1)
    b.output("floats", b.op("gelu", made))
    codes = b.input("codes", "u8[9, 64]")
    b.output("bytes", b.op("matmul_integer", codes, weights("int8", 64, 40)))
    b.output("halves", b.op("cast", b.op("cast", x, to=DType.F16), to=DType.F32))
    values, places = b.op("top_k", x, axis=1, k=5, largest=True)
    b.output("values", values)
    b.output("places", places)
    return b.module()


@cache
def objects_of(make: Callable[[], Any], target: str) -> list[bytes]:
    """What LLVM makes of a module's kernels."""
    found: list[bytes] = []
    made = llvm.to_object

    def to_object(text: str, machine: llvm.Machine, function: str) -> bytes:
        found.append(made(text, machine, function))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llvm, "to_object", to_object)
        aot.compile(make(), targets=[target], cache=False, jobs=1)
    assert found
    return found


def operators(target: Target, step: int = 1) -> list[bytes]:
    cases = [*operator_cases(target), *(c for c in access_cases() if c.runs_on(target))]
    return [compile_kernel(case.make(), target) for case in cases[::step]]


@pytest.mark.parametrize("name", TARGETS)
def test_objects_are_within_the_features(name: str) -> None:
    target = target_of(name)
    found = operators(target, step=13)
    found += objects_of(small_model, name)
    assert excess(target, found) == {}


@pytest.mark.sweep
@pytest.mark.parametrize("name", TARGETS)
def test_all_objects_are_within_the_features(name: str) -> None:
    """Every operator and every op."""
    target = target_of(name)
    found = operators(target)
    found += objects_of(samples_module, name)
    assert excess(target, found) == {}


@pytest.mark.parametrize(("name", "other"), LACKING)
def test_an_instruction_outside_is_found(name: str, other: str) -> None:
    found = objects_of(small_model, name)
    assert excess(target_of(name), found) == {}
    assert excess(target_of(name), found, target_of(other).features)


def test_a_cpu_that_has_more_is_found() -> None:
    """What a target file was once taken with: a CPU of AVX2, and the features of SSE4.2."""
    target = target_of("x86-64-v2")
    (case,) = operator_cases(target, ("vector",))[:1]
    objects = [compile_kernel(case.make(), replace(target, cpu="haswell"))]
    messages = excess(target, objects)
    assert any("vmovups" in text for text in messages), messages
