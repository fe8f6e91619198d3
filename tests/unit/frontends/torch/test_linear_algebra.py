"""Factorisations of small matrices beside torch: batches, rectangles, exchanges, special ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aot
from tests.support.torch_modules import Functions, check

TOLERANCE = 3e-5


def _well_conditioned(t: Any, *shape: int, dtype: Any = None) -> Any:
    made = t.randn(*shape, dtype=dtype)
    return made + 2 * t.eye(shape[-2], shape[-1], dtype=dtype)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 17])
def test_solutions(t: Any, count: int) -> None:
    t.manual_seed(count)
    linalg = t.linalg
    x, b = _well_conditioned(t, 2, count, count), t.randn(2, count, 3)
    functions: Functions = {
        "inv": lambda x, b: (linalg.inv(x), *linalg.inv_ex(x[0])),
        "det": lambda x, b: (linalg.det(x), *linalg.slogdet(x), t.logdet(x @ x.mT)),
        "solve": lambda x, b: (linalg.solve(x, b), linalg.solve(x, b[:, :, 0])),
        "by factors": lambda x, b: t.linalg.lu_solve(*t.linalg.lu_factor(x), b),
        "from the right": lambda x, b: linalg.solve(x, b.mT, left=False),
        "of one": lambda x, b: linalg.solve(x[0], b),
        "triangles": lambda x, b: (
            linalg.solve_triangular(x, b, upper=True),
            linalg.solve_triangular(x, b, upper=False, unitriangular=True),
            linalg.solve_triangular(x, b.mT, upper=True, left=False),
            *t.triangular_solve(b, x, upper=False, transpose=True),
        ),
    }
    check(functions, [x, b], tolerance=TOLERANCE)


@pytest.mark.parametrize("shape", [(5, 5), (2, 4, 7), (3, 7, 4), (1, 1), (6, 1), (1, 6)])
def test_factors(t: Any, shape: tuple[int, ...]) -> None:
    t.manual_seed(sum(shape))
    functions: Functions = {
        "lu": t.linalg.lu,
        "lu factors": t.linalg.lu_factor,
        "unpacked": lambda x: t.lu_unpack(*t.linalg.lu_factor(x)),
        "qr": t.linalg.qr,
        "complete": lambda x: t.linalg.qr(x, mode="complete"),
        "r": lambda x: t.linalg.qr(x, mode="r")[1],
    }
    check(functions, [t.randn(shape)], tolerance=TOLERANCE)


def test_roots_of_positive_matrices(t: Any) -> None:
    t.manual_seed(5)
    x, b = t.randn(2, 6, 6), t.randn(2, 6, 3)
    x = x @ x.mT + t.eye(6)
    linalg = t.linalg
    functions: Functions = {
        "cholesky": lambda x, b: (linalg.cholesky(x), linalg.cholesky(x, upper=True)),
        "one triangle is read": lambda x, b: linalg.cholesky(x.tril() + 9 * t.ones(6, 6).triu(1)),
        "solve": lambda x, b: (
            t.cholesky_solve(b, linalg.cholesky(x)),
            t.cholesky_solve(b, linalg.cholesky(x, upper=True), upper=True),
        ),
        "inverse": lambda x, b: t.cholesky_inverse(linalg.cholesky(x)),
    }
    check(functions, [x, b], tolerance=TOLERANCE)


def test_double_precision(t: Any) -> None:
    t.manual_seed(6)
    x = _well_conditioned(t, 8, 8, dtype=t.float64)
    functions: Functions = {
        "inv": lambda x: (t.linalg.inv(x), t.linalg.det(x), *t.linalg.qr(x)),
        "cholesky": lambda x: t.linalg.cholesky(x @ x.mT),
    }
    check(functions, [x], tolerance=1e-12)


def test_special_matrices(t: Any) -> None:
    """Singular ones, those whose first pivot is 0, and those of no rows."""
    singular = t.tensor([[1.0, 2], [2, 4]])
    exchanged = t.tensor([[0.0, 1, 0], [0, 0, 2], [3, 0, 0]])
    empty = t.zeros(2, 0, 0)
    functions: Functions = {
        "singular": lambda s, x, e: (t.det(s), *t.linalg.slogdet(s), t.det(s * 0)),
        "exchanged": lambda s, x, e: (t.det(x), t.linalg.inv(x), *t.linalg.lu(x)),
        "reflected": lambda s, x, e: (*t.linalg.qr(x), *t.linalg.qr(t.eye(3)), *t.linalg.qr(-x)),
        "empty": lambda s, x, e: (t.det(e), t.linalg.inv(e), t.linalg.cholesky(e)),
    }
    check(functions, [singular, exchanged, empty], tolerance=TOLERANCE)


def test_factors_are_compiled(t: Any) -> None:
    t.manual_seed(7)
    x = _well_conditioned(t, 3, 12, 12)

    class Factors(t.nn.Module):
        def forward(self, x: Any) -> Any:
            root = t.linalg.cholesky(x @ x.mT + t.eye(12))
            return t.linalg.inv(x), t.linalg.det(x), *t.linalg.qr(x), root

    with aot.load(aot.compile(t.export.export(Factors(), (x,)))) as program:
        for ours, theirs in zip(program(x), Factors()(x), strict=True):
            scale = float(theirs.abs().max())
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=TOLERANCE * scale)
