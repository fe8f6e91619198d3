"""What the buffers of an interpreted kernel hold before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aot.ir.dims import evaluate, product
from aot.kernels.ir.nodes import Buffer

Array = np.ndarray[Any, Any]


def filled(
    buffer: Buffer,
    pattern: int | None,
    rng: np.random.Generator,
    dims: Mapping[str, int] | None = None,
) -> Array:
    """The elements of a buffer: drawn, or a pattern in each byte; of what is open by `dims`."""
    size = evaluate(product(buffer.shape), dims or {})
    dtype = buffer.dtype.numpy
    if pattern is not None:
        return np.full(size * np.dtype(dtype).itemsize, pattern, np.uint8).view(dtype)
    if dtype.kind == "f":
        return rng.uniform(-2, 2, size).astype(dtype)
    return rng.integers(0, 2, size).astype(dtype)
