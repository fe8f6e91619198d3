"""Valid nodes with one thing made wrong: what is not imported is refused, and nothing else happens.

The nodes are those of ONNX's own tests. Only importing is under test: limits of memory and time
have tests of their own (test_onnx_hostile.py).
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, numpy_helper

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from tests.support import onnx_node_suite as suite

Random = random.Random

INTS = (0, -1, 1, 2, -2, 7, -7, 31, 1 << 31, -(1 << 31), 1 << 62, -(1 << 63), (1 << 63) - 1)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e30, 1e-30, -1e10)


def change_attribute(attribute: Any, rng: Random) -> None:
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(INTS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"nonsense", b"\xff"))
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        how = rng.randrange(5)
        if how == 0:
            del attribute.ints[0]
        elif how == 1:
            attribute.ints.append(rng.choice(INTS))
        else:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTS)


def change_constant(tensor: Any, rng: Random) -> None:
    array = numpy_helper.to_array(tensor).copy()
    how = rng.randrange(6)
    if how == 0:
        array = array.reshape(-1)[:0]
    elif how == 1:
        array = np.concatenate([array.reshape(-1)] * 2)
    elif how == 2:
        array = array.reshape((*array.shape, 1))
    elif array.size and array.dtype.kind in "fiu":
        value = rng.choice(FLOATS)
        if array.dtype.kind != "f":
            limits = np.iinfo(array.dtype)
            value = min(max(rng.choice(INTS), int(limits.min)), int(limits.max))
        array.reshape(-1)[rng.randrange(array.size)] = value
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def change_input(info: Any, rng: Random) -> None:
    dims = info.type.tensor_type.shape.dim
    how = rng.randrange(5)
    if how == 0 and dims:
        del dims[0]
    elif how == 1:
        dims.add().dim_value = rng.choice((1, 2, 3))
    elif how == 2 and dims:
        dims[rng.randrange(len(dims))].dim_param = "N"
    elif dims:
        dims[rng.randrange(len(dims))].dim_value = rng.choice((1, 2, 3, 5, 1 << 31, 1 << 45))


def mutated(model: onnx.ModelProto, rng: Random) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    places: list[tuple[Callable[[Any, Random], None], Any]] = [
        *((change_attribute, a) for a in copy.graph.node[0].attribute),
        *((change_constant, t) for t in copy.graph.initializer),
        *((change_input, i) for i in copy.graph.input),
    ]
    for _ in range(rng.choice((1, 1, 2)) if places else 0):
        change, place = rng.choice(places)
        change(place, rng)
    return copy


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_wrong_node_is_refused_or_imported(rounds: int) -> None:
    pins = importable_cases()
    rng = random.Random(17 + rounds)
    for _ in range(rounds):
        for case in pins:
            model = mutated(case.model, rng)
            try:
                with np.errstate(all="ignore"):
                    import_onnx(model)
            except (CompileError, UnsupportedError):
                pass
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                pytest.fail(
                    f"{case.name}: {type(error).__name__}: {error} ({where.filename}:"
                    f"{where.lineno})\n{onnx.printer.to_text(model.graph)[:2000]}"
                )


def importable_cases() -> list[suite.Case]:
    """The cases that import as they are, with constants where they must be."""
    from tests.support import onnx_node_report as report

    _, pins = report.read_pins()
    chosen, _ = suite.cases()
    found = [chosen[n] for n in pins["interpreter"] if n in chosen]
    for case in found:
        suite.imported(case)
    return found
