"""The epilogue of a reduction along a row of results."""

from __future__ import annotations

from aot.base.records import dataclass
from aot.ir import expr
from aot.ir.expr import Reduce, Var
from aot.kernels.nest import segments
from aot.kernels.nest.nest import Axis, Output


@dataclass(frozen=True)
class Epilogue:
    """The computation between a reduction's sum and its stored result.

    Attributes:
        total: stands for the sum.
        output: with the variable in place of the sum.
    """

    total: Var
    output: Output

    @staticmethod
    def of(output: Output, reduce: Reduce) -> Epilogue:
        """The epilogue of an output's only reduction."""
        total = Var("total", reduce.dtype)

        def named(e: expr.Expr) -> expr.Expr | None:
            return total if e is reduce else None

        return Epilogue(total, output.rewritten(lambda e: expr.transform(e, named)))

    def segments(self, at: Axis) -> list[tuple[Output, int, int]]:
        """(output, begin, end) of the segments of an axis within which the epilogue's conditions
        are constant."""
        ends = segments.ends(self.output.values, at.var, at.count)
        spans = zip([0, *ends], ends, strict=False)
        return [(segments.output_within(self.output, at.var, *span), *span) for span in spans]
