"""Compiles functions with control flow and states as they stand: each op is a dispatch of its own.

So tests of the program and the runtime say where values are and what is tied, whatever the other
passes would make of it; and compare with the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import aot
from aot.analysis.control import control_ops
from aot.analysis.memory.views import is_view
from aot.frontends.text import import_text
from aot.ir.builtin import CONSTANT, YIELD
from aot.ir.clone import clone_op
from aot.ir.graph import Block, Function, Module, Op
from aot.ir.interpreter.interpreter import run
from aot.ir.interpreter.memory import States
from aot.ir.rewriter import Rewriter
from aot.link.image import ProgramImage
from aot.link.program import decode
from aot.ops.control import ASSIGN, STATE
from aot.ops.selection import CONCAT_ALIAS
from aot.ops.structure import REGION
from aot.passes.base import Pass, PassContext
from aot.passes.bind import BIND
from aot.passes.fusion.outline import OUTLINE
from aot.passes.fusion.tie_operands import TIE_OPERANDS
from aot.passes.simplify.dce import DCE
from aot.runtime import loader

Array = NDArray[Any]


def put_into_regions(module: Module, _: PassContext) -> None:
    """Each op that computes becomes a region."""
    for function in module.entry_points:
        for op in list(control_ops(function)):
            record = op.record
            is_memory = record in (CONSTANT, CONCAT_ALIAS, STATE, ASSIGN) or is_view(op)
            if not (is_memory or op.blocks or record.is_terminator):
                _put_into_region(function, op)


def _put_into_region(function: Function, op: Op) -> None:
    operands = list(dict.fromkeys(v for v in op.operands if v is not None))
    block = Block([v.type for v in operands])
    into = Rewriter(function, block)
    inner = clone_op(op, dict(zip(operands, block.args, strict=True)), into)
    into.insert(Op(YIELD, inner.results, {}, []))
    made = Op(REGION, operands, {}, [v.type for v in op.results], [block], op.origin)
    rewriter = Rewriter(function).at(op)
    rewriter.insert(made)
    rewriter.replace_op(op, made.results)


EACH = Pass(
    "each-op-a-region",
    put_into_regions,
    "Requires: nothing. Ensures: each op that computes is a region. Never: fuses.",
)


def compiled(
    source: str | Module, *, ties: bool = True, target: str = "host"
) -> aot.CompiledModule:
    """The module of a function, from its text."""
    module = import_text(source) if isinstance(source, str) else source
    steps = (DCE, EACH, TIE_OPERANDS, OUTLINE) if ties else (DCE, EACH, OUTLINE)
    with (
        patch("aot.driver.pipeline.MODEL_PASSES", (BIND,)),
        patch("aot.driver.pipeline.TARGET_PASSES", steps),
        patch("aot.driver.pipeline.OUTLINED", steps.index(OUTLINE) + 1),
    ):
        return aot.compile(module, targets=[target])


def program_of(source: str) -> ProgramImage:
    """The only program of a function's module."""
    (variant,) = compiled(source).image.variants
    return variant.entry_points[0].program


def instruction_names(source: str) -> list[str]:
    """Its instructions in order."""
    return [i.name for i in decode(program_of(source).code)]


@contextmanager
def program(source: str | Module, *, ties: bool = True) -> Iterator[loader.Program]:
    """The program of a function."""
    with aot.load(compiled(source, ties=ties)) as loaded:
        yield loaded


class Twin:
    """A program and the interpreter, run side by side and compared."""

    def __init__(self, source: str, loaded: loader.Program) -> None:
        self.module = import_text(source)
        self.loaded = loaded
        self.states: States = {}

    def __call__(self, *inputs: Array, symbols: Mapping[str, int] | None = None) -> list[Array]:
        """Results of both, which must be equal."""
        expected = run(
            self.module.main,
            [a.copy() for a in inputs],
            symbols=symbols,
            module=self.module,
            states=self.states,
        )
        found = self.loaded.run(list(inputs))
        assert_equal(found, expected)
        return found

    def reset(self) -> None:
        """Both forget."""
        self.loaded.reset()
        self.states.clear()


@contextmanager
def twin(source: str, *, ties: bool = True) -> Iterator[Twin]:
    """A function's program and its interpreter."""
    with program(source, ties=ties) as loaded:
        yield Twin(source, loaded)


def check(source: str, *inputs: Array) -> list[Array]:
    """Results of one run, the same with ties and without, and the interpreter's."""
    with twin(source) as tied, twin(source, ties=False) as plain:
        found = tied(*inputs)
        plain(*inputs)
        return found


def assert_equal(found: Sequence[Array], expected: Sequence[Array]) -> None:
    """Same shapes and elements, but for rounding."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
