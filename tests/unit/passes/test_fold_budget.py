"""Folding of a small file's constants: results and work in proportion to what the file has."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from aot.builder import Builder
from aot.errors import CompileError
from aot.ir import limits
from aot.ir.graph import Function
from aot.passes.simplify import fold_constants
from tests.support.paths import ROOT

SIZE = 4096 * 4  # bytes of one result


def chain(count: int) -> Function:
    """Results of SIZE bytes, one from the other, that begin with a constant as large; the last is
    reduced, so that all must be known for it to be folded."""
    b = Builder()
    value = b.constant(np.linspace(0, 1, SIZE // 4, dtype=np.float32))
    for _ in range(count):
        value = b.op("sin", value)
    total = b.op("reduce_sum", value, axes=[0], keepdims=False)
    b.output("y", b.op("add", b.input("x", "f32[]"), total))
    return b.function()


def left(function: Function) -> int:
    return [op.name for op in function.block].count("sin")


@pytest.mark.parametrize(("count", "is_folded"), [(9, True), (10, True), (11, False)])
def test_results_are_bounded(count: int, is_folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 3 * SIZE)
    monkeypatch.setattr(limits, "FACTOR", 7)  # of the one constant
    function = chain(count)
    fold_constants.fold(function, SIZE)
    assert left(function) == (0 if is_folded else 1)


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms of sums count, of which a result may have many."""
    n = 64
    for terms, is_folded in ((n**3 + n**2, True), (n**3 + n**2 - 1, False)):
        monkeypatch.setattr(fold_constants, "FREE_WORK", terms)
        monkeypatch.setattr(fold_constants, "WORK_OF_BYTE", 0)
        b = Builder()
        a = np.ones((n, n), np.float32)
        b.output("y", b.op("add", b.input("x", f"f32[{n}, {n}]"), b.op("matmul", a, a)))
        function = b.function()
        fold_constants.fold(function, 1 << 20)
        assert ("matmul" in [op.name for op in function.block]) is not is_folded


def test_the_users_limit_allows_more_and_constants_move_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 0)
    monkeypatch.setattr(limits, "FACTOR", 1)
    for limit_mib, count in ((0, 5), (1, 65)):
        function = chain(count)
        fold_constants.fold(function, SIZE, limit_mib)
        assert left(function) == 1  # MOVED_TIMES of 4, and a MiB of 64
        function = chain(count - 1)
        fold_constants.fold(function, SIZE, limit_mib)
        assert left(function) == 0


def test_arithmetic_on_shapes_is_always_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_constants.Budget, "__init__", _nothing)
    b = Builder()
    sizes = b.constant(np.arange(8, dtype=np.int64))
    for _ in range(100):
        sizes = b.op("add", sizes, np.int64(1))
    b.output("y", b.op("add", b.input("x", "i64[8]"), sizes))
    function = b.function()
    fold_constants.fold(function, 1 << 20)
    assert [op.name for op in function.block].count("add") == 1


def _nothing(budget: fold_constants.Budget, *_: object) -> None:
    budget.bytes = budget.most_bytes = budget.work = 0


def test_memory_that_computing_takes_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []

    def refuse(**given: object) -> AbstractContextManager[None]:
        """What references are evaluated under: the constant's, then the first op's."""
        evaluated.append(given)
        if len(evaluated) > 1:
            raise MemoryError
        return nullcontext()

    function = chain(2)
    sin = next(op for op in function.block if op.name == "sin")
    sin.origin = 'Sin "wave"'
    with pytest.raises(CompileError) as failure, monkeypatch.context() as patched:
        patched.setattr(np, "errstate", refuse)
        fold_constants.fold(function, SIZE)
    assert str(failure.value) == (
        'Sin "wave": computing it while compiling takes more than 1538 MiB of memory; '
        "--limit-memory MIB (limit_memory) allows more"
    )


CODE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from aot.ir import limits
before = resource.getrlimit(resource.RLIMIT_DATA)
for mib in (200, 600):
    try:
        with limits.enforced(400 << 20):
            print(np.ones(mib << 17).nbytes >> 20)
    except MemoryError:
        print("too much")
assert resource.getrlimit(resource.RLIMIT_DATA) == before
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_system_enforces_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, ROOT], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["200", "too much"]
