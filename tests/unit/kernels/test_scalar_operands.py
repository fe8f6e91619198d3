"""Operands that are one element, repeated or seen through views, in every place of every op.

What is repeated has no index for any dim, and a scalar no dims at all: passes that look at an
operand's last dim must ask whether it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import aot
from aot.backends.vulkan.emit import compile_kernel
from aot.builder import Builder
from aot.ir.clone import clone_module
from aot.ir.graph import Module, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Kind, Sample
from aot.ir.types import DType, TensorType
from aot.kernels.lowering import lower
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target import selection as targets
from tests.support.op_samples import draw
from tests.support.random_graphs import CALLS, difference


class _Maker:
    """A graph with values that are one element, or one a row or a column."""

    def __init__(self) -> None:
        self.b = Builder()
        self.count = 0

    def input(self, dtype: DType, *dims: int) -> Value:
        self.count += 1
        return self.b.input(f"x{self.count}", TensorType(dtype, dims))

    def repeated(self, value: Value, type: TensorType) -> Value:
        made: Value = self.b.op("broadcast_to", value, shape=type.dims)
        return made

    def scalar(self, type: TensorType) -> Value:
        return self.repeated(self.input(type.dtype), type)

    def one(self, type: TensorType) -> Value:
        return self.repeated(self.input(type.dtype, 1), type)

    def twice(self, type: TensorType) -> Value:
        step = self.b.op("broadcast_to", self.input(type.dtype), shape=(1,) * type.rank)
        return self.repeated(step, type)

    def reshaped(self, type: TensorType) -> Value:
        return self.repeated(self.b.op("reshape", self.input(type.dtype, 1, 1), shape=()), type)

    def picked(self, type: TensorType) -> Value:
        x = self.b.op("slice", self.input(type.dtype, 5), starts=(2,), stops=(3,), steps=(1,))
        return self.repeated(self.b.op("reshape", x, shape=()), type)

    def widened(self, type: TensorType) -> Value:
        return self.repeated(self.b.op("cast", self.input(DType.F16), to=type.dtype), type)

    def computed(self, type: TensorType) -> Value:
        return self.repeated(self.b.op("neg", self.input(type.dtype)), type)

    def column(self, type: TensorType) -> Value:
        return self.repeated(self.input(type.dtype, *type.shape[:-1], 1), type)

    def row(self, type: TensorType) -> Value:
        return self.repeated(self.input(type.dtype, type.shape[-1]), type)

    def turned(self, type: TensorType) -> Value:
        perm = tuple(reversed(range(type.rank)))
        turned = TensorType(type.dtype, tuple(reversed(type.dims)))
        made: Value = self.b.op("transpose", self.scalar(turned), perm=perm)
        return made


Form = Callable[[_Maker, TensorType], Value]
FORMS: tuple[Form, ...] = (
    _Maker.scalar, _Maker.one, _Maker.twice, _Maker.reshaped, _Maker.picked, _Maker.widened,
    _Maker.computed, _Maker.column, _Maker.row, _Maker.turned,
)  # fmt: skip


def _places(sample: Sample) -> Iterator[tuple[int, ...]]:
    """Operands that may be anything: one at a time, then all."""
    floats = tuple(
        n
        for n, type in enumerate(sample.operands)
        if type is not None
        and type.dtype is DType.F32
        and type.rank
        and n not in sample.constant_operands
    )
    yield from ((n,) for n in floats)
    if len(floats) > 1:
        yield floats


def graphs(name: str, form: Form, samples: Sequence[Sample] = ()) -> Iterator[Module]:
    """For each sample of an op and each place: the op on such an operand there."""
    for sample in samples or _samples(name):
        for places in _places(sample):
            maker, rng = _Maker(), np.random.default_rng(7)
            operands: list[Value | None] = []
            for at, type in enumerate(sample.operands):
                if type is None:
                    operands.append(None)
                elif at in places:
                    operands.append(form(maker, type))
                elif type.dtype is DType.F32 and at not in sample.constant_operands:
                    operands.append(maker.input(type.dtype, *type.shape))
                else:
                    operands.append(maker.b.constant(draw(type, sample.low, sample.high, rng)))
            made = maker.b.op(name, *operands, **dict(sample.attrs))
            results = made if isinstance(made, tuple) else (made,)
            for at, value in enumerate(results):
                maker.b.output(f"y{at}", value)
            yield maker.b.module()


def lowered(module: Module, name: str) -> None:
    """The passes and the kernels of a target, without its compiler."""
    target, options = targets.load(name), CompileOptions(targets=(name,))
    module = clone_module(module)
    run_passes(module, MODEL_PASSES, PassContext(options))
    run_passes(module, TARGET_PASSES, PassContext(options, target))
    for function in module.executables:
        kernel = lower(function, target)
        if not target.is_cpu:
            assert compile_kernel(kernel, target).words


def computed(module: Module) -> None:
    rng = np.random.default_rng(3)
    inputs = {v.name: draw(v.type, 0.5, 2.0, rng) for v in module.main.inputs}
    expected = run(module.main, inputs)
    with aot.load(aot.compile(module, targets=["host"])) as program:
        found = list(program(inputs).values())
    problem = difference(module.main, inputs, expected, found)
    assert not problem, problem


# what it computes of equal elements is noise, divided by noise
CANCELLING = ("layer_norm",)


def _samples(name: str) -> list[Sample]:
    return [REGISTRY[name].samples[number] for number in CALLS[name]]


FLOAT_OPS = [n for n in CALLS if any(next(_places(s), ()) for s in _samples(n))]
CONTRACTIONS = [n for n in FLOAT_OPS if REGISTRY[n].kind is Kind.CONTRACTION]


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_kernels_of_contractions_take_them_in_every_place(name: str) -> None:
    """On a CPU and a GPU in turn."""
    for number, form in enumerate(FORMS):
        for turn, module in enumerate(graphs(name, form), number):
            lowered(module, ("x86-64-v3", "vulkan-1.1")[turn % 2])


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_what_contractions_compute_of_them(name: str, form: Form) -> None:
    """One sample an op, in every place at once."""
    *_, module = graphs(name, form, REGISTRY[name].samples[:1])
    computed(module)


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [n for n in FLOAT_OPS if n not in CANCELLING])
def test_what_all_ops_compute_of_them(name: str, form: Form) -> None:
    for module in graphs(name, form):
        lowered(module, "vulkan-1.1")
        computed(module)


def test_attention_over_no_keys_is_a_shader() -> None:
    maker = _Maker()
    shapes = ((1, 2, 3, 2), (1, 2, 0, 2), (1, 2, 0, 2))
    operands = [maker.turned(TensorType(DType.F32, shape)) for shape in shapes]
    maker.b.output("y", maker.b.op("attention", *operands, scale=0.5))
    lowered(maker.b.module(), "vulkan-1.1")
