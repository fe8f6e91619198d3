"""Extents that data decide in a package for browsers: decoders under Node as in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from tests.support import decoder_models
from tests.support.node import Call, make_package, require_node, require_toolchain, run_calls
from tests.support.onnx_models import ort_run


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
    for given, outcome in zip(feeds, run_calls(loader, [Call(f) for f in feeds]), strict=True):
        assert not outcome.message
        wanted = ort_run(model, given)
        for a, b in zip(outcome.outputs.values(), wanted, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
