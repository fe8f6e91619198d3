"""Each operator of the table against LiteRT's own kernels, on the reference interpreter."""

from __future__ import annotations

import pytest

from tests.support import (
    litert,
    tflite_layer_cases,  # noqa: F401 - adds cases
    tflite_movement_cases,  # noqa: F401 - adds cases
    tflite_rare_cases,  # noqa: F401 - adds cases
    tflite_state_cases,  # noqa: F401 - adds cases
)
from tests.support.tflite_cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators_agree_with_litert(case: Case) -> None:
    model, inputs = case.make()
    how = {"tolerance": case.tolerance, "steps": case.steps, "calls": case.calls}
    litert.check(model, inputs, **how)
