"""Lowering: small fused graphs, on the kernel interpreter; ops' samples are test_op_samples.py's.

The oracle is the graph interpreter. Kernels are verified, and run with race checks on.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aot.backends.cpu.compile import emit_assembly
from aot.ir import dims
from aot.ir.builder import Builder
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import For, If, Stmt
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
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
    text = to_text(seen[0])
    # few terms of several rows are one piece of memory, of all rows where these are known
    is_piece = terms in (3, 4, 5) and rows != 1
    assert ("scratch piece" in text) == is_piece
    are_all = is_piece and rows != "N"
    has_row_vectors = not are_all and (not isinstance(terms, int) or terms >= 4)
    assert ("scratch row_vectors" in text) == has_row_vectors
    code = emit_assembly(seen[0], targets.load("aarch64-generic"))
    # rows of one term are neighbours
    by_lanes = is_piece or has_row_vectors or (terms == 1 and rows != 1)
    assert by_lanes == bool(re.search(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[3\]", code))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_fused_graphs(name: str, target: str) -> None:
    make, shapes = GRAPHS[name]
    b = Builder()
    dispatches = make(b)
    rng = np.random.RandomState(3)
    inputs = [rng.uniform(-2, 2, s).astype(np.float32) for s in shapes]
    check(b.function(), inputs, target, dispatches)


def test_a_block_of_few_indices_asks_for_no_more() -> None:
    """Where only the device knows how many indices there are, a workgroup has a block of them; of
    seven it once asked two thousand times whether there is one more."""
    text = """
    executable @e0[d0, d1](%0: f32[d0, d1, 1], %1: f32[d0, 1, d1]) -> ("r0") bindings [1, 1, 1] {
      %2 = add(%0, %1) : f32[d0, d1, d1]
      return(%2)
    }
    """
    (function,) = parse_module(text).executables
    kernel = lower(function, targets.load("x86-64-v3"))

    def iterations(body: tuple[Stmt, ...], at: dict[str, int]) -> int:
        total = 0
        for stmt in body:
            if isinstance(stmt, For):
                total += dims.evaluate(stmt.extent, at) * max(1, iterations(stmt.body, at))
            elif isinstance(stmt, If):
                total += max(iterations(stmt.then, at), iterations(stmt.otherwise, at))
        return total

    for rows, columns in ((252, 7), (64, 16), (3, 5000), (1, 2049)):
        found = iterations(kernel.body, {"d0": rows, "d1": columns})
        assert found <= 2 * rows * columns * columns
