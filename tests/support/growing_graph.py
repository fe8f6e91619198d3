"""A graph of any number of rows, and what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.builder import Builder


def growing_graph() -> Any:
    """y = softmax(relu(x @ w)) of N rows."""
    b = Builder()
    x = b.input("x", "f32[N, 24]")
    w = b.constant(np.linspace(-1, 1, 24 * 40, dtype=np.float32).reshape(24, 40))
    b.output("y", b.op("softmax", b.op("relu", b.op("matmul", x, w)), axis=1))
    return b.module()


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, 24)).astype(np.float32)


def growing_reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    w = np.linspace(-1, 1, 24 * 40, dtype=np.float32).reshape(24, 40)
    made = np.exp(np.maximum(x @ w, 0))
    return made / made.sum(axis=1, keepdims=True)
