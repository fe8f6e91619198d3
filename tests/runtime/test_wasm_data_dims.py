"""Extents that data decide in a package for browsers: decoders under Node as in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import aot
from tests.support import decoder_models
from tests.support.node import Call, make_package, require_node, require_toolchain, run_calls
from tests.support.onnx_models import graph_model, ort_run, tensor_info


@pytest.mark.parametrize(
    "name",
    ["greedy list of several shapes", pytest.param("beam search", marks=pytest.mark.sweep)],
)
def test_decoders_under_node(name: str, tmp_path: Path) -> None:
    require_node()
    require_toolchain()
    make, most = decoder_models.MODELS[name]
    model = make()
    path = tmp_path / "decoder.aotm"
    path.write_bytes(aot.compile(model, targets=("wasm32",), max_extents=most).to_bytes())
    loader = make_package(path, tmp_path / "package")
    feeds = [decoder_models.feeds(model, seed) for seed in range(12)]
    outcomes = run_calls(loader, [Call(f) for f in feeds])
    for given, outcome in zip(feeds, outcomes, strict=True):
        assert not outcome.message
        wanted = ort_run(model, given)
        for a, b in zip(outcome.outputs.values(), wanted, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    lengths = [outcome.outputs["row" if "list" in name else "tokens"].shape for outcome in outcomes]
    assert len(set(lengths)) > 1
    memory = {outcome.memory_bytes for outcome in outcomes}
    assert len(memory) == 1 and 0 not in memory  # however long results are


def test_memory_is_seen_to_grow(tmp_path: Path) -> None:
    """What the test above relies on: longer inputs need more of it."""
    require_node()
    require_toolchain()
    model = graph_model(
        [helper.make_node("NonZero", ["x"], ["y"])], [tensor_info("x", ["N"])], ["y"]
    )
    path = tmp_path / "positions.aotm"
    path.write_bytes(aot.compile(model, targets=("wasm32",)).to_bytes())
    feeds = [{"x": np.ones(count, np.float32)} for count in (1, 1_000_000, 1_000_000, 1)]
    outcomes = run_calls(make_package(path, tmp_path / "package"), [Call(f) for f in feeds])
    assert [o.outputs["y"].shape[1] for o in outcomes] == [1, 1_000_000, 1_000_000, 1]
    first, second, *others = [o.memory_bytes for o in outcomes]
    assert first < second
    assert others == [second, second]
