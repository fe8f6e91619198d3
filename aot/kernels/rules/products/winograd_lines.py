"""Winograd's F(4x4, 3x3) and F(2x2, 3x3) transforms of one line of inputs, filters or sums.

Owns the transforms along one axis, as expressions; where lines lie is winograd.py's, and
transforms.py's for a GPU. The matrices behind them are those of aot/ops/winograd_parts.py.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, but with points 0,
+-sqrt(2) and +-1/sqrt(2): pairs of reciprocals round less (Alam et al., "Winograd Convolution for
Deep Neural Networks: Efficient Point Selection", 2022), half as much as 0, +-1 and +-2 do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from aot.ir import expr
from aot.ir.expr import Expr, Fma
from aot.kernels.ir.nodes import Stmt
from aot.kernels.nest.nest import Nest

Name = Callable[[Expr], Expr]
"""Gives a value that is used twice a name."""
Line = Callable[[Name, Sequence[Expr]], list[Expr]]

_ROOT = 2**0.5


def input_line(name: Name, d: Sequence[Expr]) -> list[Expr]:
    """The transformed line of inputs, B^T d."""
    even1, odd1 = name(_fma(-1 / 2, d[2], d[4])), name(_fma(-1 / 2, d[1], d[3]))
    even2, odd2 = name(_fma(-2, d[2], d[4])), name(_fma(-2, d[1], d[3]))
    return [
        _fma(-5 / 2, d[2], expr.add(d[0], d[4])),
        _fma(_ROOT, odd1, even1),
        _fma(-_ROOT, odd1, even1),
        _fma(1 / _ROOT, odd2, even2),
        _fma(-1 / _ROOT, odd2, even2),
        _fma(-5 / 2, d[3], expr.add(d[1], d[5])),
    ]


def filter_line(name: Name, g: Sequence[Expr], *, is_added: bool) -> list[Expr]:
    """G g, its lines for the points p other than 0 times |p|. Where `is_added`, the tap between is
    scaled once and added: four multiply-adds would need copies of what they are added to."""
    even1 = name(_fma(_ROOT / 3, g[2], _scaled(_ROOT / 6, g[0])))
    even2 = name(_fma(-_ROOT / 6, g[2], _scaled(-_ROOT / 3, g[0])))
    if is_added:
        odd = name(_scaled(1 / 3, g[1]))
        lines = expr.add(even1, odd), expr.sub(even1, odd), expr.sub(even2, odd)
        return [g[0], *lines, expr.add(even2, odd), g[2]]
    return [
        g[0],
        _fma(1 / 3, g[1], even1),
        _fma(-1 / 3, g[1], even1),
        _fma(-1 / 3, g[1], even2),
        _fma(1 / 3, g[1], even2),
        g[2],
    ]


def output_line(name: Name, m: Sequence[Expr]) -> list[Expr]:
    """The output transform A^T m. Its columns for points p other than 0 are divided by |p|."""
    sum1, sum2 = name(expr.add(m[1], m[2])), name(expr.add(m[3], m[4]))
    odd1, odd2 = name(expr.sub(m[1], m[2])), name(expr.sub(m[3], m[4]))
    return [
        _fma(1 / _ROOT, sum1, _fma(_ROOT, sum2, m[0])),
        expr.add(odd1, odd2),
        _fma(_ROOT, sum1, _scaled(1 / _ROOT, sum2)),
        _fma(2, odd1, _fma(1 / 2, odd2, m[5])),
    ]


def short_input_line(name: Name, d: Sequence[Expr]) -> list[Expr]:
    """The F(2x2, 3x3) input transform B^T d of four inputs, at the points 0, +-1 and infinity."""
    return [expr.sub(d[0], d[2]), expr.add(d[1], d[2]), expr.sub(d[2], d[1]), expr.sub(d[3], d[1])]


def short_output_line(name: Name, m: Sequence[Expr]) -> list[Expr]:
    """The F(2x2, 3x3) output transform A^T m of the sums at the points 0, +-1 and infinity."""
    return [expr.add(m[0], expr.add(m[1], m[2])), expr.add(expr.sub(m[1], m[2]), m[3])]


# by outputs along a side of a tile
INPUT_LINES: dict[int, Line] = {2: short_input_line, 4: input_line}
OUTPUT_LINES: dict[int, Line] = {2: short_output_line, 4: output_line}


def transformed(
    line: Line, name: Name, count: int, element: Callable[[int, int], Expr]
) -> Iterator[list[Expr]]:
    """The rows of a transformed tile of `count` by `count` elements: transforms its columns first,
    then each row on demand."""
    numbers = range(count)
    columns = [[name(e) for e in line(name, [element(i, j) for i in numbers])] for j in numbers]
    for row in zip(*columns, strict=True):
        yield line(name, list(row))


def line_stmts(
    nest: Nest,
    line: Line,
    prefix: str,
    count: int,
    load: Callable[[int], Expr],
    store: Callable[[int, Expr], Stmt],
) -> list[Stmt]:
    """Statements that load a line, with elements named `prefix`, transform it and store it."""
    stmts: list[Stmt] = []
    loaded = [nest.let(load(n), stmts, prefix) for n in range(count)]
    made = line(lambda e: nest.let(e, stmts, "h"), loaded)
    return stmts + [store(n, value) for n, value in enumerate(made)]


def _scaled(factor: float, x: Expr) -> Expr:
    return expr.mul(expr.const(factor, x.dtype), x)


def _fma(factor: float, x: Expr, y: Expr) -> Expr:
    return Fma(expr.const(factor, x.dtype), x, y, x.dtype)
