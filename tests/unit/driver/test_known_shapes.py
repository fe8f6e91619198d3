"""A model whose shapes no data decide pays nothing for those that do: it has the same bytes where
the compiler knows nothing of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import aot
from aot.errors import InternalError
from aot.ir import data_dims
from aot.link import flow, lengths, shape_part
from aot.link.image import ProgramImage
from aot.link.program import decode
from aot.link.reader import read_module
from aot.passes import bind, check_supported
from aot.passes.memory import concat_aliaser
from tests.support import control_models, data_dim_graphs
from tests.support.generated_models import GENERATED
from tests.support.models import feeds, model_path

TARGETS = ("x86-64-v3", "vulkan-1.1")
MAKERS: dict[str, Callable[[], Any]] = {
    "open dims": GENERATED["decoder"].model,
    "convolutions": GENERATED["u_net"].model,
    "a branch that data choose": control_models.if_on_data,
    "a loop that a condition ends": control_models.counted_while,
    "rows": control_models.sums_of_rows,
}
MODULES = (bind, check_supported, concat_aliaser, lengths, shape_part)


def refuse(*arguments: Any, **named: Any) -> NoReturn:
    raise InternalError("a shape that data decide")


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the compiler find no extents that data decide, and fail where it would compute some."""
    for module in MODULES:
        monkeypatch.setattr(module, "extents_of", lambda function: {})
    monkeypatch.setattr(data_dims.Largest, "_largest", refuse)
    monkeypatch.setattr(shape_part.ShapePart, "give", refuse)
    monkeypatch.setattr(flow, "EXTENT", None)


def programs(data: bytes) -> list[ProgramImage]:
    return [e.program for v in read_module(data).variants for e in v.entry_points]


def declared_late(program: ProgramImage) -> list[str]:
    """Instructions of the execute part that say what an output's extent is."""
    begin = program.blocks[program.execute_block]
    found = [i.name for i in decode(program.code) if i.at >= begin]
    return [name for name in found if name == "OUTPUT_DIM"]


def check(
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
    targets: tuple[str, ...] = TARGETS,
    **options: Any,
) -> None:
    data = aot.compile(model, targets=targets, **options).to_bytes()
    assert not any(declared_late(program) for program in programs(data))
    forget(monkeypatch)
    assert aot.compile(model, targets=targets, **options).to_bytes() == data


@pytest.mark.parametrize("name", MAKERS)
def test_bytes_of_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(MAKERS[name](), monkeypatch)


@pytest.mark.models
@pytest.mark.parametrize(
    "name", ["ppocr_cls", pytest.param("silero_vad_16k", marks=pytest.mark.slow)]
)
def test_bytes_of_reference_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {key: array.shape for key, array in feeds(name).items()}
    check(str(model_path(name)), monkeypatch, TARGETS[:1], input_shapes=shapes)


def test_what_data_decide_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above rely on."""
    model = data_dim_graphs.DataGraph(1, 1, ["chosen_rows"]).model()
    data = aot.compile(model, targets=("x86-64-v3",)).to_bytes()
    assert [declared_late(program) for program in programs(data)] == [["OUTPUT_DIM"]]
    forget(monkeypatch)
    with pytest.raises(aot.AotError):
        aot.compile(model, targets=("x86-64-v3",))
