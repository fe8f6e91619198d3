"""Normalisations of groups of an image's channels that lie innermost in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from aot.ir import expr
from aot.ir.graph import Function
from aot.ir.interpreter.interpreter import run
from aot.ir.text.parser import parse_module
from aot.kernels.ir.nodes import Buffer, For, If, Let, LoopKind, Stmt, Store
from aot.kernels.lowering import lower
from aot.target import selection as targets
from tests.support.cpu_running import native_targets
from tests.support.kernel_backends import on_cpu
from tests.support.lowering import run_executable, to_memory
from tests.support.lowering_checks import Engine, on_interpreter

LAST = "{order=0:3:4:1:2}"
# groups, channels of a group, height, width
SHAPES = [
    (1, 8, 4, 4),
    (8, 8, 4, 6),
    (2, 24, 5, 3),
    (3, 3, 7, 1),
    (4, 40, 2, 8),
    (5, 1, 3, 4),
    (32, 2, 4, 6),
    (48, 4, 3, 3),
    (32, 10, 2, 4),
    (2, 16, 4, 4),
]


def norm(shape: tuple[int, ...], *, is_last: bool, size: str = "") -> Function:
    """Of images a norm of each group of channels, which lie innermost in memory, and are stored so
    or in planes; `size` is the executable's parameter, by which images are higher and wider."""
    groups, channels, *extents = shape
    spatial = [f"{n}*{size}" if size else str(n) for n in extents]
    type = f"f32[2, {groups}, {channels}, {', '.join(spatial)}]"
    text = f"""
    executable @e0{f"[{size}]" if size else ""}(%0: {type}{LAST}) -> ("r0") bindings [2, 3] {{
      %1 = layer_norm(%0) {{axis = 2, epsilon = 1e-5}} : {type}{LAST if is_last else ""}
      return(%1)
    }}
    """
    (function,) = parse_module(text).executables
    return function


def check(shape: tuple[int, ...], target: str, engine: Engine) -> None:
    data = np.random.default_rng(3).standard_normal((2, *shape)).astype(np.float32)
    for is_last in (True, False):
        function = norm(shape, is_last=is_last)
        (wanted,) = run(function, [data])
        memory = [to_memory(data, function.inputs[0].type, {})]
        (got,) = run_executable(function, targets.load(target), memory, [], engine)
        np.testing.assert_allclose(got, wanted, 2e-5, 1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_natively(shape: tuple[int, ...]) -> None:
    for target in native_targets():
        check(shape, target, on_cpu(target))


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64-generic", "vulkan-1.1"])
def test_interpreted(target: str) -> None:
    for shape in (*SHAPES[1:4], SHAPES[-3]):
        check(shape, target, on_interpreter)


def loads_of_vectors(body: tuple[Stmt, ...], lanes: tuple[expr.Var, ...] = ()) -> Iterator[bool]:
    """Whether lanes read one element after the other, of each load from a buffer."""
    for stmt in body:
        if isinstance(stmt, For):
            inner = (*lanes, stmt.var) if stmt.kind is LoopKind.VECTOR else lanes
            yield from loads_of_vectors(stmt.body, inner)
        elif isinstance(stmt, If):
            yield from loads_of_vectors((*stmt.then, *stmt.otherwise), lanes)
        elif isinstance(stmt, (Store, Let)):
            for load in expr.loads(stmt.value):
                if isinstance(load.source, Buffer) and lanes:
                    yield expr.coefficient(load.indices[0], lanes[-1]) == 1


@pytest.mark.parametrize("size", ["", "d0"])
@pytest.mark.parametrize("channels", [2, 8, 10, 16, 24])
def test_lanes_go_along_memory(channels: int, size: str) -> None:
    kernel = lower(norm((8, channels, 16, 16), is_last=True, size=size), targets.load("x86-64-v4"))
    # groups that fill no vectors share them
    assert ("reductions/group_norms" in kernel.rules) == (channels % 16 != 0)
    found = list(loads_of_vectors(kernel.body))
    assert found
    assert all(found)


def test_rows_are_no_groups() -> None:
    """A softmax's rows have nothing around them."""
    text = """
    executable @e0(%0: f32[4, 49, 49]) -> ("r0") bindings [2, 3] {
      %1 = softmax(%0) {axis = 2} : f32[4, 49, 49]
      return(%1)
    }
    """
    (function,) = parse_module(text).executables
    kernel = lower(function, targets.load("x86-64-v4"))
    assert kernel.rules == ("reductions/row_blocks",)
