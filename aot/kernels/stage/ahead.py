"""Prefetches: the cache lines that neighbours in a buffer are in, asked for before they are used.

Owns how many those are and where they lie. A rule owns when there is time for them.
"""

from __future__ import annotations

from aot.ir import expr
from aot.ir.expr import Expr
from aot.kernels.ir.nodes import Buffer, Prefetch, Scratch, Stmt
from aot.target.model import CACHE_LINE


def of_line(source: Buffer | Scratch) -> int:
    """Elements of a cache line."""
    return max(1, CACHE_LINE // source.dtype.bytes)


def cache_lines(source: Buffer | Scratch, elements: int, *, is_part: bool = False) -> int:
    """Cache lines that so many neighbours are in; one more where they are a part of a row, which
    may begin within a cache line."""
    return -(-elements // of_line(source)) + int(is_part)


def prefetch(source: Buffer | Scratch, at: Expr, elements: int = 1) -> list[Stmt]:
    """Prefetches the cache lines of `elements` neighbours from `at` on; none of scratch."""
    if not isinstance(source, Buffer):
        return []
    ahead = range(0, elements, of_line(source))
    return [Prefetch(source, expr.add(at, expr.index(n))) for n in ahead]


def least_bytes(*sources: Buffer | Scratch) -> int:
    """Bytes that buffers have at least, each once; scratch counts none."""
    return sum(s.dtype.bytes * s.least_elements for s in {*sources} if isinstance(s, Buffer))
