"""Random ONNX models compute what ONNX Runtime does: imported, and in a sweep compiled."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings

import aot
from aot.frontends.onnx import import_onnx
from tests.support.onnx_models import Array, ort_run, our_run
from tests.support.onnx_random import models

TOLERANCE = 1e-4
LARGEST = 1e5  # beyond, sums that cancel lose what both engines agree on
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
Made = tuple[onnx.ModelProto, dict[str, Array]]


def _expected(made: Made) -> list[Array]:
    """What ONNX Runtime gives, where it runs the model."""
    try:
        found = ort_run(*made)
    except Exception:  # it has limits of its own, such as ranks
        assume(False)
    assume(all(np.isfinite(a).all() and np.abs(a).max(initial=0) < LARGEST for a in found))
    return found


def _check(found: list[Array], expected: list[Array]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * scale)


@given(models())
@settings(max_examples=60, suppress_health_check=SLOW)
def test_random_models_mean_what_onnx_runtime_computes(made: Made) -> None:
    expected = _expected(made)
    _check(our_run(import_onnx(made[0]).main, made[1]), expected)


@pytest.mark.sweep
@given(models())
@settings(max_examples=100, suppress_health_check=SLOW)
def test_random_models_compute_it_when_compiled(made: Made) -> None:
    expected = _expected(made)
    with aot.load(aot.compile(made[0], targets=["host"], jobs=1).to_bytes()) as program:
        _check(list(program(made[1]).values()), expected)


def _opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a name of its own for each dim of its inputs."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for value in found.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    return found


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::aot.errors.ProofWarning")
@given(models())
@settings(max_examples=150, suppress_health_check=SLOW)
def test_random_models_of_open_dims_compute_it_when_compiled(made: Made) -> None:
    """Runs whose error asks for a dim when compiling are left out: a product has a dim of 1 there,
    and meets a longer one."""
    expected = _expected(made)
    with aot.load(aot.compile(_opened(made[0]), targets=["host"], jobs=1).to_bytes()) as program:
        try:
            found = list(program(made[1]).values())
        except aot.RuntimeFailure as failure:
            assume("for inputs in which one is 1, give their dims" not in str(failure))
            raise
    _check(found, expected)
