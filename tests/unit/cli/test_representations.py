"""What a notebook or a debugger shows of public objects: a line or a few, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.ir.graph import Module
from aot.ir.text.printer import print_module
from aot.link.reader import read_module
from aot.report.details import Details

MOST = 400  # characters


def model(layers: int = 40) -> Module:
    b = Builder()
    x = b.input("x", "f32[N, 64]")
    for number in range(layers):
        weight = np.full((64, 64), number + 1, np.float32)
        x = b.op("relu", b.op("matmul", x, b.constant(weight)))
    b.output("y", x)
    return b.module()


@pytest.fixture(scope="module")
def compiled() -> aot.CompiledModule:
    return aot.compile(model(), targets=["host"], details=True)


def test_a_compiled_module_says_what_it_is(compiled: aot.CompiledModule) -> None:
    (variant,) = compiled.image.variants
    assert repr(compiled) == (
        f"<CompiledModule 'main' for {variant.target}: {len(variant.executables)} executables, "
        f"{len(variant.code):,} bytes of code, {len(compiled.image.rodata):,} of constants>"
    )


def test_a_program_says_what_it_takes_and_gives(compiled: aot.CompiledModule) -> None:
    with aot.load(compiled) as program:
        assert repr(program) == (
            f"<Program 'main' for {program.target} on cpu: x: f32[N, 64] -> y: f32[N, 64]>"
        )


def test_a_module_and_its_functions() -> None:
    made = model(2)
    assert repr(made) == "<Module @main, 0 executables>"
    assert repr(made.main) == "<function @main: 1 inputs, 1 results>"
    constant = next(op for op in made.main.block if op.name == "constant")
    assert repr(constant.attrs["value"]) == "<constant f32[64, 64]>"


def test_a_verification(compiled: aot.CompiledModule, tmp_path: Path) -> None:
    path = tmp_path / "model.ir"
    path.write_text(print_module(model(1)))
    found = aot.verify(aot.compile(model(1)), path, shapes={"x": (2, 64)})
    (output,) = found.outputs
    assert repr(found) == (
        f"<Verification: {found.target} agrees with reference, 1 outputs, "
        f"largest error {output.error:.2g}, tolerance 0.0001>"
    )


def _parts(value: Any) -> Iterator[Any]:
    """An object and the public ones in it, a few of each kind."""
    yield value
    items = vars(value).items() if hasattr(value, "__dict__") else ()
    for name, held in items:
        if name.startswith("_"):
            continue
        for each in list(held)[:2] if isinstance(held, (tuple, list)) else [held]:
            if type(each).__module__.startswith("aot."):
                yield from _parts(each)


def test_no_object_shows_all_that_it_holds(compiled: aot.CompiledModule) -> None:
    """Plain data (dicts, the facts of a target) is shown whole."""
    assert isinstance(compiled.details, Details)
    roots = [compiled, compiled.details, read_module(compiled.to_bytes()), model(), Builder()]
    with aot.load(compiled) as program:
        for part in (found for root in [*roots, program] for found in _parts(root)):
            text = repr(part)
            assert len(text) <= MOST and "\n" not in text, f"{type(part).__name__}: {text[:200]}"
