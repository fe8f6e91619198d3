"""Matrices that subgroups of a GPU hold: what the statements mean, and contractions by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from aot.errors import InternalError
from aot.ir.expr import Var
from aot.ir.types import DType
from aot.kernels.ir import interpreter
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import (
    Barrier,
    BufferClass,
    For,
    Kernel,
    KernelBuilder,
    LoopKind,
    Matrix,
    MatrixProduct,
    MatrixStore,
    MatrixZero,
    Space,
    Stmt,
    holds_matrices,
)
from aot.kernels.ir.text import to_text
from aot.kernels.ir.verifier import verify
from aot.target.model import Target
from tests.support import dot_products, golden
from tests.support.executables import Executable
from tests.support.kernel_terms import add, ix, load, mul, store, vector
from tests.support.lowering_checks import Engine
from tests.support.matrix_products import (
    CASES,
    TARGETS,
    WAYS,
    conv,
    kept_busy,
    least_tiles,
    product,
)

F16, F32, I8, I32, INDEX = DType.F16, DType.F32, DType.I8, DType.I32, DType.INDEX
M, N, K = 4, 8, 2  # rows, columns and terms of a matrix: no two are alike


class Site:
    """A kernel of two subgroups of four lanes, each with a matrix of sums: the products of rows of
    `x`, which lanes bring into shared memory, and of `w`."""

    def __init__(self, dtype: DType = F16, sums: DType = F32) -> None:
        self.b = b = KernelBuilder("matrices")
        self.x = b.buffer("x", dtype, BufferClass.INPUTS, (2 * M * K,), (1,))
        self.w = b.buffer("w", dtype, BufferClass.CONSTANTS, (100,), (1,))
        self.y = b.buffer("y", sums, BufferClass.OUTPUTS, (2 * M * N,), (1,), is_written=True)
        self.sums = b.scratch("sums", sums, (1, M, N), Space.MATRIX)
        self.shared = b.scratch("shared", sums, (2 * M, N + 1), Space.WORKGROUP)
        self.rows = b.scratch("rows", dtype, (2, M, K), Space.WORKGROUP)
        self.group = b.var("group")

    def groups(self, *body: Stmt) -> Stmt:
        return For(self.group, 2, LoopKind.LANE, body, axis=1)

    def lanes(self, body: Callable[[Var, Var], Sequence[Stmt]]) -> Stmt:
        group, own = self.b.var("g"), self.b.var("l")
        inner = For(own, M, LoopKind.LANE, tuple(body(group, own)))
        return For(group, 2, LoopKind.LANE, (inner,), axis=1)

    def zero(self) -> MatrixZero:
        return MatrixZero(self.sums, (ix(0),))

    def product(self, left: Matrix | None = None, right: Matrix | None = None) -> MatrixProduct:
        left = left or Matrix(self.rows, (self.group, ix(0), ix(0)), K)
        right = right or Matrix(self.w, (ix(5),), 11)
        return MatrixProduct(self.sums, (ix(0),), K, left, right)

    def stored(self, target: Matrix | None = None) -> MatrixStore:
        target = target or Matrix(self.shared, (mul(self.group, M), ix(1)), N + 1)
        return MatrixStore(self.sums, (ix(0),), target)

    def kernel(self, *groups: Stmt) -> Kernel:
        """The kernel whose subgroups do this with the rows, and store sums."""

        def bring(group: Var, own: Var) -> list[Stmt]:
            first = mul(add(mul(group, M), own), K)
            return [
                store(self.rows, group, own, ix(k), value=load(self.x, add(first, k)))
                for k in range(K)
            ]

        def take(group: Var, own: Var) -> list[Stmt]:
            row = add(mul(group, M), own)
            return [
                store(self.y, add(mul(row, N), n), value=load(self.shared, row, ix(n + 1)))
                for n in range(N)
            ]

        between = (Barrier(), self.groups(*groups), Barrier())
        return self.b.build((self.lanes(bring), *between, self.lanes(take)))


@pytest.mark.parametrize(("dtype", "sums"), [(F16, F32), (I8, I32)])
def test_statements_mean_sums_of_products(dtype: DType, sums: DType) -> None:
    site = Site(dtype, sums)
    kernel = site.kernel(site.zero(), site.product(), site.product(), site.stored())
    verify(kernel)
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-9, 9, n).astype(dtype.numpy) for n in (2 * M * K, 100))
    y = np.zeros(2 * M * N, sums.numpy)
    params = {p.name: 0 for p in kernel.params}
    interpreter.run(kernel, {"x": x, "w": w, "y": y}, params, check_races=True)
    rows = x.reshape(2 * M, K).astype(np.int64)
    weights = np.stack([w[5 + 11 * k : 5 + 11 * k + N] for k in range(K)]).astype(np.int64)
    np.testing.assert_array_equal(y.reshape(2 * M, N), 2 * rows @ weights)


def test_a_transposed_matrix_has_its_columns_in_memory() -> None:
    site = Site()
    right = Matrix(site.w, (ix(5),), 11, is_transposed=True)
    kernel = site.kernel(site.zero(), site.product(right=right), site.stored())
    verify(kernel)
    assert "transposed(w[5] step 11)" in to_text(kernel)
    rng = np.random.default_rng(2)
    x, w = (rng.integers(-9, 9, n).astype(np.float16) for n in (2 * M * K, 100))
    y = np.zeros(2 * M * N, np.float32)
    params = {p.name: 0 for p in kernel.params}
    interpreter.run(kernel, {"x": x, "w": w, "y": y}, params, check_races=True)
    weights = np.stack([w[5 + 11 * n : 5 + 11 * n + K] for n in range(N)])
    np.testing.assert_array_equal(y.reshape(2 * M, N), x.reshape(2 * M, K) @ weights.T)


def test_sums_that_begin_with_nothing_are_not_read() -> None:
    site = Site()
    kernel = site.kernel(site.product(), site.stored())
    buffers = {b.name: np.zeros(b.shape, b.dtype.numpy) for b in kernel.buffers}  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="sums is read where nothing was stored"):
        interpreter.run(kernel, buffers, {p.name: 0 for p in kernel.params})


def test_what_lanes_bring_is_there_after_a_barrier() -> None:
    site = Site()
    kernel = site.kernel(site.zero(), site.product(), site.stored())
    early = Kernel(
        *(kernel.name, kernel.params, kernel.buffers, kernel.scratch),
        tuple(s for s in kernel.body if s is not kernel.body[1]),
    )
    buffers = {b.name: np.zeros(b.shape, b.dtype.numpy) for b in kernel.buffers}  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="both touch rows with no barrier between"):
        interpreter.run(early, buffers, {p.name: 0 for p in kernel.params}, check_races=True)


def test_text_and_fingerprint_tell_matrices_apart() -> None:
    site = Site()
    kernel = site.kernel(site.zero(), site.product(), site.stored())
    lines = [line.strip() for line in to_text(kernel).splitlines()]
    assert "scratch sums: f32[1, 4, 8] matrix" in lines
    at = lines.index("sums[0, :, :] = zeros")
    assert lines[at + 1 : at + 3] == [
        "sums[0, :, :] += matrix_product.2(matrix(rows[group, 0, 0] step 2), matrix(w[5] step 11))",
        "matrix(shared[group * 4, 1] step 9) = sums[0, :, :]",
    ]

    def other(step: int) -> bytes:
        site = Site()
        right = Matrix(site.w, (ix(5),), step)
        return fingerprint(site.kernel(site.zero(), site.product(right=right), site.stored()))

    assert fingerprint(kernel) == other(11) != other(12)


Rule = Callable[[Site], Stmt]
BROKEN: list[tuple[str, Rule]] = [
    ("shared holds no matrices", lambda k: k.groups(MatrixZero(k.shared, ()))),
    ("matrices of sums are not those of a subgroup", lambda k: k.zero()),
    (
        "matrices of sums are not those of a subgroup",
        lambda k: k.lanes(lambda group, own: [k.zero()]),
    ),
    (
        "matrices of sums are not those of a subgroup",
        lambda k: k.groups(vector(k.b.var("v"), 2, [k.zero()])),
    ),
    ("2 indices of sums of rank 3", lambda k: k.groups(MatrixZero(k.sums, ()))),
    (
        "index 0 of register scratch sums does not become a constant",
        lambda k: k.groups(For(v := k.b.var("i"), 1, LoopKind.SERIAL, (MatrixZero(k.sums, (v,)),))),
    ),
    (
        "rows has no matrix whose rows are 3 apart",
        lambda k: k.groups(k.product(Matrix(k.rows, (k.group, ix(0), ix(0)), 3))),
    ),
    (
        "sums has no matrix whose rows are 8 apart",
        lambda k: k.groups(k.product(Matrix(k.sums, (ix(0), ix(0), ix(0)), N))),
    ),
    (
        "matrices of f32 stored to rows",
        lambda k: k.groups(k.stored(Matrix(k.rows, (k.group, ix(0), ix(0)), K))),
    ),
    (
        "store to sums, an element of a matrix",
        lambda k: k.lanes(
            lambda g, own: [store(k.sums, ix(0), ix(0), ix(0), value=load(k.shared, ix(0), ix(0)))]
        ),
    ),
    (
        "load of sums, an element of a matrix",
        lambda k: k.lanes(
            lambda g, own: [store(k.shared, ix(0), ix(0), value=load(k.sums, ix(0), ix(0), ix(0)))]
        ),
    ),
]


@pytest.mark.parametrize(("message", "rule"), BROKEN)
def test_rules_of_matrices(message: str, rule: Rule) -> None:
    site = Site()
    with pytest.raises(InternalError) as caught:
        verify(site.b.build((rule(site), site.lanes(lambda g, own: []))))
    assert message in str(caught.value)


# Contractions


def check(case: Executable, machine: Target, engine: Engine, how: str = "normal") -> None:
    """By matrices."""
    assert holds_matrices(case.lowered(machine, 16))
    case.check(machine, engine, how, alignment=16)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("target", "engine"), WAYS)
def test_contractions_of_matrices(case: str, target: str, engine: Engine) -> None:
    check(CASES[case], kept_busy(target), engine)


@pytest.mark.parametrize(
    "case", [conv(128, 33, (5, 6)), product(37, 256, 50), conv(256, 16, (4, 3), taps=1, images=2)]
)
@pytest.mark.parametrize(("target", "engine"), WAYS)
def test_subgroups_share_sums(case: Executable, target: str, engine: Engine) -> None:
    machine = least_tiles(case, target)
    stored = next(s for s in case.lowered(machine, 16).scratch if s.name == "stored")
    assert stored.shape[0] == 4
    check(case, machine, engine)


BYTES = {
    "product": dot_products.matmul("i8", 40, 64, 50),
    "conv": dot_products.conv("i8", 32, 24, pad_value=-5),
    "conv-of-points": dot_products.conv("i8", 64, 33, kernel=1),
    "conv-strided": dot_products.conv("i8", 32, 20, stride=2),
    "conv-of-planes": dot_products.conv("i8", 32, 40, pad_value=127, layout=""),
}


@pytest.mark.parametrize("how", ["random", "extremes"])
@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize(("target", "engine"), WAYS)
def test_contractions_of_bytes(name: str, how: str, target: str, engine: Engine) -> None:
    """Sums are exact."""
    check(BYTES[name], kept_busy(target), engine, how)


def test_bytes_of_two_kinds_are_no_matrices() -> None:
    case = dot_products.conv("u8", 32, 24)
    assert not holds_matrices(case.lowered(kept_busy("nvidia-matrix"), 16))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "case",
    [
        product(1, 64, 64),  # most rows of a matrix would be none
        product(64, 64, 4),
        product(64, 60, 64),  # no whole matrices of terms
        product(64, 64, 62, right=""),  # no whole quads of columns
        conv(3, 32, (20, 20)),
    ],
)
def test_other_contractions_are_as_elsewhere(case: Executable, target: str) -> None:
    assert not holds_matrices(case.lowered(kept_busy(target), 16))


def test_targets_without_matrices_have_none() -> None:
    for name in ("vulkan-android-15", "nvidia", "lavapipe"):
        assert not holds_matrices(CASES["product"].lowered(name, 16))


def test_a_tile_of_a_product() -> None:
    """128 lanes are four subgroups of the same place; each has two columns of matrices."""
    kernel = product(256, 64, 256).lowered("nvidia-matrix", 16)
    assert kernel.workgroup_size == (32, 4, 1)
    sums = next(s for s in kernel.scratch if s.space is Space.MATRIX)
    assert (sums.shape, kernel.grid) == ((1, 2, 16, 16), (16, 8, 1))


def test_golden(bless: bool) -> None:
    """A product whose tile has more columns than there are."""
    kernel = product(16, 16, 24).lowered(kept_busy("lavapipe-matrix"), 16)
    golden.check("kernels/matrix_product-gpu.txt", to_text(kernel), bless=bless)
