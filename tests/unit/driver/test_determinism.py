"""The same input gives the same bytes: in every process, whatever the hash seed and threads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import aot
from aot.ir.text.printer import print_module
from tests.support.fresh_process import digest_in_fresh_process
from tests.support.models import model_path


@pytest.mark.models
@pytest.mark.parametrize("name", ["ppocr_cls", "silero_vad_16k"])
def test_equal_bytes_in_every_process(name: str) -> None:
    path, targets = model_path(name), ["x86-64-v3", "aarch64-generic"]
    here = hashlib.sha256(aot.compile(path, targets=targets).to_bytes()).hexdigest()
    more = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "3")
    assert digest_in_fresh_process(path, targets, PYTHONHASHSEED="2", **more) == here


def test_equal_bytes_for_a_small_graph_on_every_target(tmp_path: Path) -> None:
    from aot.builder import Builder

    b = Builder()
    x = b.input("x", "f32[N, 8]")
    b.output("y", b.op("softmax", b.op("tanh", x), axis=1))
    path = tmp_path / "model.ir"
    path.write_text(print_module(b.module()))
    targets = [t.name for t in aot.targets()]
    first = digest_in_fresh_process(path, targets, PYTHONHASHSEED="3")
    assert digest_in_fresh_process(path, targets, PYTHONHASHSEED="4") == first
