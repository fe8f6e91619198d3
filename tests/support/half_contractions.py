"""Contractions of f16 with their tiles' layouts, checked against the graph interpreter."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Sample
from aot.ir.types import DType, Layout, TensorType
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.half_regions import executable, half_function, half_inputs
from tests.support.lowering import run_executable
from tests.support.lowering_checks import Engine

F32 = DType.F32

CHANNELS_LAST = Layout(order=(0, 2, 3, 1))


def conv(channels: int, layout: Layout | None = CHANNELS_LAST, filters: int = 20) -> Sample:
    panels = Layout(splits=((0, 16),), order=(0, 2, 3, 1, 4))
    return Sample(
        (
            TensorType(F32, (2, channels, 5, 9), layout),
            TensorType(F32, (filters, channels, 3, 3), panels),
            TensorType(F32, (filters,)),
        ),
        {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "group": 1},
    )


def matmul(rows: int, depth: int, columns: int) -> Sample:
    panels = Layout(splits=((1, 16),), order=(1, 0, 2))
    return Sample(
        (TensorType(F32, (rows, depth)), TensorType(F32, (depth, columns), panels)),
    )


CONTRACTIONS = {
    "conv": ("conv", conv(32)),
    "conv-dense": ("conv", conv(32, None)),
    "conv-few-channels": ("conv", conv(3)),
    "conv-uneven": ("conv", conv(37)),
    "matmul": ("matmul", matmul(29, 64, 48)),
    "matmul-one-row": ("matmul", matmul(1, 300, 33)),
    "matmul-in-pieces": ("matmul", matmul(17, 519, 16)),
    "matmul-short": ("matmul", matmul(17, 5, 16)),
}


def physical(arrays: list[Any], sample: Sample) -> list[Any]:
    from aot.ir.types import to_physical

    types = [t for t in sample.operands if t is not None]
    return [to_physical(a, t) for a, t in zip(arrays, types, strict=True)]


def check_contraction(name: str, target: str, engine: Engine) -> None:
    op, sample = CONTRACTIONS[name]
    function, inputs = half_function(REGISTRY[op], sample), half_inputs(sample)
    expected = run(function, inputs)
    made = executable(function)
    (got,) = run_executable(made, device(target), physical(inputs, sample), [], engine)
    wanted = expected[0].astype(np.float64)
    error = np.abs(got.astype(np.float64) - wanted)
    assert (error <= 2**-10 * np.abs(wanted) + 1e-5 * np.abs(wanted).max()).all()


def device(name: str) -> Target:
    """A target with features added: NAME+FEATURE+..."""
    base, *features = name.split("+")
    found = targets.load(base)
    return dataclasses.replace(found, features=(*found.features, *features))
