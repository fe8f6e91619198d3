"""Results that no cache holds until they are read: whole lines of them go past the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import STREAMED_BYTES, lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.executables import Extents, graph_of, outlined, type_of
from tests.support.kernel_backends import on_cpu
from tests.support.lowering_checks import check

LIMIT = "aot.kernels.lowering.STREAMED_BYTES"


def kernel_of(op: str, shape: Extents, target: str, **attrs: Any) -> Kernel:
    return lower(
        outlined(graph_of([f"f32{list(shape)}"], (op, attrs)), target), targets.load(target)
    )


def assembly_of(op: str, shape: Extents, target: str = "x86-64-v4", **attrs: Any) -> str:
    return emit_assembly(kernel_of(op, shape, target, **attrs), targets.load(target))


LARGE = (STREAMED_BYTES // 4096, 1024)


def test_large_results_go_past_the_caches() -> None:
    text = assembly_of("transpose", LARGE, perm=(1, 0))
    assert "vmovnt" in text
    assert "sfence" in text


def test_what_a_cache_may_hold_does_not() -> None:
    text = assembly_of("transpose", (LARGE[0] - 16, LARGE[1]), perm=(1, 0))
    assert "vmovnt" not in text
    assert "sfence" not in text


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic", "wasm32"])
def test_where_no_vector_is_a_line_nothing_does(target: str) -> None:
    assert "streamed" not in to_text(kernel_of("transpose", LARGE, target, perm=(1, 0)))


def test_what_a_kernel_may_read_again_does_not() -> None:
    assert "streamed" not in to_text(kernel_of("softmax", LARGE, "x86-64-v4", axis=1))


def test_what_may_be_stored_where_it_was_loaded_does_not() -> None:
    assert "streamed" not in to_text(kernel_of("neg", LARGE, "x86-64-v4"))


@pytest.mark.parametrize("dtype", [DType.F32, DType.U8, DType.I64, DType.F16])
@pytest.mark.parametrize("target", native_targets())
def test_results_are_the_same(target: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever rows begin: in a line of a cache, or not."""
    monkeypatch.setattr(LIMIT, 0)
    for shape in ((3, 64), (5, 33), (2, 7, 129), (2, 1000), (64, 128)):
        x = np.random.default_rng(1).integers(0, 100, shape).astype(dtype.numpy)
        perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        for op, attrs in (("abs", {}), ("transpose", {"perm": perm})):
            if op == "abs" and dtype is DType.U8:
                continue
            check(graph_of([type_of(x)], (op, attrs)), [x], target, 1, engine=on_cpu(target))


POOL = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}


def test_pools_whose_lines_follow_each_other_go_past_the_caches() -> None:
    for op in ("max_pool", "average_pool"):
        assert "vmovnt" in assembly_of(op, (1, 32, 512, 512), **POOL)
        assert "vmovnt" not in assembly_of(op, (1, 32, 512, 520), **POOL)
        assert "vmovnt" not in assembly_of(op, (1, 32, 512, 496), **POOL)


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
@pytest.mark.parametrize("target", native_targets())
def test_pools_are_the_same(target: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMIT, 0)
    for shape in ((1, 3, 9, 64), (2, 2, 33, 31), (1, 1, 5, 144)):
        x = np.random.default_rng(1).integers(0, 100, shape).astype(np.float32)
        check(graph_of([type_of(x)], (op, POOL)), [x], target, 1, 1e-6, engine=on_cpu(target))
