"""Prefetches of the cache lines of contiguous buffer elements.

Owns how many those are and where they lie. A rule owns when there is time for them.
"""

from __future__ import annotations

from aot.ir import expr
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import Buffer, Prefetch, Scratch, Stmt
from aot.target.model import CACHE_LINE


def of_line(source: Buffer | Scratch) -> int:
    """The number of elements of `source` in a cache line."""
    return max(1, CACHE_LINE // source.dtype.bytes)


def cache_lines(source: Buffer | Scratch, elements: int, *, is_part: bool = False) -> int:
    """The number of cache lines that hold `elements` contiguous elements; one more for a part of a
    row, which may start within a cache line."""
    return -(-elements // of_line(source)) + int(is_part)


def prefetch(source: Buffer | Scratch, at: Expr, elements: int = 1) -> list[Stmt]:
    """Prefetches of the cache lines of `elements` contiguous elements from `at`; none for
    scratch."""
    if not isinstance(source, Buffer):
        return []
    ahead = range(0, elements, of_line(source))
    return [Prefetch(source, expr.add(at, expr.index(n))) for n in ahead]


def least_bytes(*sources: Buffer | Scratch) -> int:
    """The smallest size of all buffers together, in bytes, each counted once; scratch is not
    counted."""
    return sum(s.dtype.bytes * s.least_elements for s in {*sources} if isinstance(s, Buffer))
