"""Lowering: small fused graphs, on the kernel interpreter; ops' samples are test_op_samples.py's.

The oracle is the graph interpreter. Kernels are verified, and run with race checks on.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.ir.builder import Builder
from aot.kernels.ir.text import to_text
from aot.target import selection as targets
from tests.support.lowering_checks import (
    TARGETS,
    check,
    on_interpreter,
)
from tests.support.lowering_graphs import (
    GRAPHS,
)


@pytest.mark.parametrize("terms", [1, 3, 4, 5, 8, 11, "K"])
@pytest.mark.parametrize("rows", [1, 5, 7, "N"])
def test_rows_multiplied_by_lanes(rows: int | str, terms: int | str) -> None:
    """Where a vector is multiplied by a lane of another, sums take the rows' scalars in vectors;
    what is left of them, and of the rows, is there as well."""
    rng = np.random.RandomState(3)
    sizes = {"N": 13, "K": 10}
    n, k = (sizes.get(str(size), size) for size in (rows, terms))
    b = Builder()
    x, w = b.input("x", f"f32[{rows}, {terms}]"), b.input("w", f"f32[{terms}, 16]")
    b.output("y", b.op("matmul", x, w))
    inputs = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((n, k), (k, 16))]
    seen: list[Any] = []

    def engine(kernel: Any, buffers: Any, params: Any) -> None:
        seen.append(kernel)
        on_interpreter(kernel, buffers, params)

    check(b.function(), inputs, "aarch64-generic", 1, engine=engine)
    has_row_vectors = not isinstance(terms, int) or terms >= 4
    assert ("scratch row_vectors" in to_text(seen[0])) == has_row_vectors
    code = emit_assembly(seen[0], targets.load("aarch64-generic"))
    assert has_row_vectors == bool(re.search(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[3\]", code))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_fused_graphs(name: str, target: str) -> None:
    make, shapes = GRAPHS[name]
    b = Builder()
    dispatches = make(b)
    rng = np.random.RandomState(3)
    inputs = [rng.uniform(-2, 2, s).astype(np.float32) for s in shapes]
    check(b.function(), inputs, target, dispatches)
