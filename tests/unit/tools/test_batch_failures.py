"""A batch whose models, places or processes fail: a row each, which stops no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from aot.errors import CompileError
from aot.tools.batch import batch
from aot.tools.batch.batch import BUILT, FAILED, build
from tests.support.batches import MODEL, Here


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, op in (("a", "relu"), ("b", "tanh")):
        (tmp_path / f"{name}.ir").write_text(MODEL.replace("OP", op))
    return tmp_path


def test_what_is_not_supported_is_one_line(folder: Path) -> None:
    nodes = [helper.make_node("StringConcat", ["x", "x"], ["y"], name=n) for n in ("a", "b")]
    nodes[1].output[0] = "z"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [onnx.ValueInfoProto(name=name) for name in ("y", "z")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "s.onnx")
    (folder / "m.toml").write_text('models = ["s.onnx"]\ntargets = ["x86-64-v3"]')
    (row,) = build("m.toml", executor=Here())
    assert row.status == FAILED and "\n" not in row.error
    assert row.error.startswith("model: not supported in this model (2): StringConcat (node 'a')")
    assert "; StringConcat (node 'b')" in row.error


def test_places_that_cannot_be_written(folder: Path) -> None:
    (folder / "m.toml").write_text('models = ["a.ir"]\ntargets = ["x86-64-v3"]')
    (folder / "build" / "a-x86-64-v3.aotm").mkdir(parents=True)
    (row,) = build("m.toml", executor=Here())
    assert row.status == FAILED and row.error.startswith("cannot write ")
    (folder / "m.toml").write_text(
        'output = "a.ir/below"\nmodels = ["a.ir"]\ntargets = ["x86-64-v3"]'
    )
    with pytest.raises(CompileError, match=r"^cannot make .*a\.ir/below: not a directory$"):
        build("m.toml", executor=Here())


def test_a_model_that_is_gone_costs_its_own_cell_only(folder: Path) -> None:
    class Removing(Here):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            (folder / "b.ir").unlink(missing_ok=True)
            return super().submit(fn, *args, **kwargs)

    (folder / "m.toml").write_text('models = ["a.ir", "b.ir"]\ntargets = ["x86-64-v3"]')
    first, second = build("m.toml", executor=Removing())
    assert (first.status, second.status) == (BUILT, FAILED)
    assert second.error.startswith("cannot read ") and second.error.endswith(
        "b.ir: no such file or directory"
    )


def test_arrays_among_options_count_by_their_contents() -> None:
    one, other = (np.array([1, n], np.int64) for n in (2, 3))
    texts = {batch._canonical({"x": value}) for value in (one, other, one.astype(np.int32))}
    assert len(texts) == 3
    assert batch._canonical({"x": one.copy(), "a": (1,)}) == batch._canonical({"a": [1], "x": one})


def test_a_process_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is its parent's; what that sends is an exception, with which the process ends."""
    kept = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        batch._await_termination()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert caught.value.code == 128 + signal.SIGTERM
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def told(task: Any) -> Any:
        raise SystemExit(143)

    batch._run_or_end(told, None)  # type: ignore[arg-type]
    assert ended == [143]
    assert batch._run_or_end(lambda task: task, "made") == "made"  # type: ignore
