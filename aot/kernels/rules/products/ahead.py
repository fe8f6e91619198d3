"""Prefetches the weights of later tiles during a tile's multiplications.

Where many rows pass the weights of some tiles of columns before those of the next ones, each pass
asks for a part of the next ones, so that these are in the second level of cache when their turn
comes. Behind the last ones lie the weights of the next kernel, which are asked for as well:
constants are stored in the order of their use.
"""

from __future__ import annotations

from collections.abc import Callable

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.dims import Dim
from aot.ir.expr import Expr, Load
from aot.kernels.ir.nodes import Prefetch, Stmt
from aot.kernels.match.products import ContractionAxes, loaded
from aot.kernels.nest.nest import Axis, Nest, Values
from aot.kernels.rules.products.product import Place, Tile, flat
from aot.kernels.rules.products.products import Placed, Terms
from aot.target.model import CACHE_LINE

# words of terms after which a tile asks for some lines, those of floats, and how many it asks for
# at most where the number of passes isn't known
ASKING, ASKING_FLOATS, MOST_LINES = 32, 64, 64


@dataclass(frozen=True)
class Ahead:
    """The prefetch distance of weights, and the passes over rows among which prefetches are
    divided.

    Attributes:
        distance: elements from a tile's weights to those that are asked for.
        passes: how often all rows come by a tile's columns.
        axes: the axes along which they do, outermost first.
    """

    distance: Dim
    passes: Dim
    axes: tuple[Axis, ...]

    def number(self, values: Values) -> Expr:
        """The index of the current pass over the rows."""
        return flat([(values[axis.var], axis.extent) for axis in self.axes])

    def lines_of(self, weight_bytes: int) -> Dim:
        """The number of cache lines that a tile prefetches for each `weight_bytes` of its own
        weights.
        """
        lines = -(-weight_bytes // CACHE_LINE)
        if isinstance(self.passes, int):
            return -(-lines // self.passes)
        return dims.minimum(MOST_LINES, dims.ceil_divide(lines, self.passes))

    def asking(
        self, nest: Nest, here: Load, piece_bytes: int, pieces: Dim, values: Values
    ) -> Callable[[Expr], list[Stmt]]:
        """A function from a piece's number to the prefetches to issue before that piece of a tile's
        sum.

        Args:
            here: the tile's first weight.
            piece_bytes: of its weights, that a piece takes.
            pieces: how many there are.
            values: of the axes.
        """
        each, first = self.lines_of(piece_bytes), expr.mul(self.number(values), expr.index(pieces))
        line = CACHE_LINE // here.source.dtype.bytes
        base = expr.add(here.indices[0], expr.index(self.distance))

        def before(n: Expr) -> list[Stmt]:
            stmts: list[Stmt] = []
            begin = expr.mul(expr.add(first, n), expr.mul(expr.index(each), expr.index(line)))
            at = nest.let(expr.add(base, begin), stmts, "ahead")

            def ask(k: Expr) -> list[Stmt]:
                return [Prefetch(here.source, expr.linear(at, (k, line)))]

            if isinstance(each, int):
                return stmts + nest.unrolled(each, ask, "l")
            return stmts + nest.serial(each, ask, "l")

        return before


class AskingTile(Placed):
    """A register tile of packed floats that prefetches weights of later tiles.

    Attributes:
        ahead: which.
    """

    def __init__(self, tile: Tile, place: Place, ahead: Ahead) -> None:
        super().__init__(tile, place)
        self.ahead = ahead

    @staticmethod
    def fits(roles: ContractionAxes) -> bool:
        """Whether the sum's terms divide into whole pieces, each with a prefetch before it."""
        axes = roles.summed
        return len(axes) == 1 and dims.modulo(axes[0].extent, ASKING_FLOATS) == 0

    def _steps(self, terms: Terms) -> list[Stmt]:
        inner, indices, left, start = terms
        if inner is None or dims.modulo(inner.extent, ASKING_FLOATS) != 0:
            return super()._steps(terms)
        nest, zero = self.nest, expr.index(0)
        size, pieces = self.roles.weight.dtype.bytes, dims.floor_divide(inner.extent, ASKING_FLOATS)
        here = loaded(self._right({**indices, inner.var: zero, **self.values}, zero, zero))
        assert here is not None
        piece_bytes = self.shape.columns * ASKING_FLOATS * size
        before = self.ahead.asking(nest, here, piece_bytes, pieces, self.values)
        inner_piece = Axis(inner.var, ASKING_FLOATS)

        def piece(n: Expr) -> list[Stmt]:
            begin = expr.linear(start, (n, ASKING_FLOATS))
            of_piece = Terms(inner_piece, indices, left, begin)
            return before(n) + super(AskingTile, self)._steps(of_piece)

        return nest.serial(pieces, piece, "p")
