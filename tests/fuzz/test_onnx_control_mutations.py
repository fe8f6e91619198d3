"""Models with If, Loop and Scan made wrong: what is not imported is refused; nothing else happens.

Names, operands, outputs and attributes change in any graph of a model, and bytes of its file.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import onnx
import pytest

from aot.errors import CompileError, UnsupportedError
from aot.frontends.onnx import import_onnx
from aot.ir.verifier import verify
from tests.support.control_models import CONTROLLED
from tests.support.random_control import random_control

Random = random.Random


@cache
def models() -> list[onnx.ModelProto]:
    return [c.model() for c in CONTROLLED.values()] + [random_control(seed) for seed in range(8)]


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def names(model: onnx.ModelProto) -> list[str]:
    found = [""]
    for graph in graphs(model.graph):
        found += [i.name for i in graph.input]
        found += [t.name for t in graph.initializer]
        found += [name for node in graph.node for name in node.output]
    return found


def _drop(items: Any, rng: Random) -> None:
    if items:
        del items[rng.randrange(len(items))]


def _rename(items: Any, name: str, rng: Random) -> None:
    if items:
        items[rng.randrange(len(items))] = name


CHANGES: tuple[Callable[[Any, Any, str, Random], None], ...] = (
    lambda graph, node, name, rng: _drop(graph.input, rng),
    lambda graph, node, name, rng: _drop(graph.output, rng),
    lambda graph, node, name, rng: graph.output.add(name=name) and None,
    lambda graph, node, name, rng: graph.input.add(name="fresh") and None,
    lambda graph, node, name, rng: _rename(node.input, name, rng),
    lambda graph, node, name, rng: _drop(node.input, rng),
    lambda graph, node, name, rng: _drop(node.output, rng),
    lambda graph, node, name, rng: _drop(node.attribute, rng),
    lambda graph, node, name, rng: node.output.append(f"more{rng.randrange(1000)}"),
    lambda graph, node, name, rng: setattr(rng.choice([*graph.output]), "name", name),
)


def changed(model: onnx.ModelProto, rng: Random) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.randint(1, 3)):
        graph = rng.choice([g for g in graphs(copy.graph) if g.node and g.output] or [copy.graph])
        if not graph.node or not graph.output:
            break
        rng.choice(CHANGES)(graph, rng.choice(graph.node), rng.choice(names(copy)), rng)
    return copy


def flipped(model: onnx.ModelProto, rng: Random) -> bytes:
    data = bytearray(model.SerializeToString())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        data[place] = rng.choice((data[place] ^ (1 << rng.randrange(8)), rng.randrange(256)))
    return bytes(data)


def check(source: onnx.ModelProto | bytes, what: object) -> bool:
    """Whether it is imported; it must be valid then, and refused in words otherwise."""
    try:
        module = import_onnx(source)
        # an output may be named twice, as ONNX Runtime takes it; only then is the graph no text
        if len(set(module.main.result_names)) == len(module.main.result_names):
            verify(module)
    except (CompileError, UnsupportedError):
        return False
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        pytest.fail(f"{what}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})")
    return True


@pytest.mark.parametrize("how", [changed, flipped])
@pytest.mark.parametrize("rounds", [300, pytest.param(6000, marks=pytest.mark.slow)])
def test_a_wrong_model_is_refused_or_imported(
    how: Callable[[onnx.ModelProto, Random], Any], rounds: int
) -> None:
    rng = random.Random(rounds)
    imported = sum(check(how(rng.choice(models()), rng), n) for n in range(rounds))
    assert 0 < imported < rounds
