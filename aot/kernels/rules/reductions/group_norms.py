"""Group normalisation, on CPUs, with few channels per group and channels innermost.

Lanes go along the channels of all groups, each of which has sums of its own over the image; what
the channels of a group have is added up then. Owns these loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.ir import expr
from aot.ir.expr import Expr, Load, Reduce, Var
from aot.kernels.ir.nodes import Scratch, Space, Stmt, Store
from aot.kernels.match.work import Build, Work
from aot.kernels.nest.index_math import simplify
from aot.kernels.nest.nest import Axis, Nest, Output, Values, combine, identity
from aot.kernels.nest.rows import SUMS, row_of_vectors

# channels of a workgroup at least, where there are more
BLOCK = 64


def schedule_group_norm(work: Work) -> Build | None:
    """The loops of a normalisation of small channel groups; None for other outputs, or if its
    groups fill vectors.
    """
    nest, found = work.nest, work.reduced
    output, reduces, free = found.output, found.reduces, found.free
    if nest.is_gpu or len(output.axes) < 2 or not reduces or output.others:
        return None
    group, member = output.axes[-2:]
    count, each = group.extent, member.extent
    if member not in free or group in free or not isinstance(count, int):
        return None
    if not isinstance(each, int) or count == 1 or each % nest.lanes == 0:
        return None
    if any(r.axes[-1][1] != each or not _is_of_images(r) for r in reduces):
        return None
    made = _GroupNorm(nest, output, reduces, free, count, each)
    return made.build if made.is_contiguous else None


def _is_of_images(reduce: Reduce) -> bool:
    """Whether a reduction runs over an image as well as channels, and its terms are cheap enough to
    recompute in each pass."""
    sources = {x.source for x in expr.loads(reduce.body)}
    is_wide = any(n != 1 for _, n in reduce.axes[:-1])
    return is_wide and len(sources) == 1 and reduce.op in ("sum", "max", "min")


class _GroupNorm:
    def __init__(
        self,
        nest: Nest,
        output: Output,
        reduces: Sequence[Reduce],
        free: Sequence[Axis],
        count: int,
        each: int,
    ) -> None:
        self.nest, self.reduces, self.each = nest, reduces, each
        self.channels = count * each
        self.channel = Var("c")
        self.group, self.member = (axis.var for axis in output.axes[-2:])
        self.output = output
        self.outer = [axis for axis in output.axes[:-2] if axis not in free]
        self.image = [axis for axis in output.axes[:-2] if axis in free]
        block = BLOCK - BLOCK % each or each
        self.block = block if self.channels % block == 0 else self.channels
        # what stands for each reduction of a channel, until there is scratch for it
        self.totals = [Var("total", reduce.dtype) for reduce in reduces]
        done: dict[Expr, Expr] = {}
        self.bodies: list[Expr] = []
        for reduce, total in zip(reduces, self.totals, strict=True):
            body = self._along(expr.transform(reduce.body, done.get), reduce.axes[-1][0])
            self.bodies.append(body)
            done[reduce] = total
        value = self._along(expr.transform(output.value, done.get), self.member)
        address = self._along(output.address, self.member)
        self.whole = replace(output, address=address, value=value)

    @property
    def is_contiguous(self) -> bool:
        """Whether channels are contiguous in every operand and in the result."""
        read = all(self._is_contiguous(e) for e in (*self.bodies, self.whole.value))
        return read and expr.coefficient(self.whole.address, self.channel) == 1

    def build(self) -> tuple[Stmt, ...]:
        builder, shape = self.nest.builder, (self.channels,)
        totals = [
            builder.scratch("totals", reduce.dtype, shape, Space.WORKGROUP)
            for reduce in self.reduces
        ]
        loads: Values = {
            total: Load(scratch, (self.channel,), scratch.dtype)
            for total, scratch in zip(self.totals, totals, strict=True)
        }
        bodies = [expr.substitute(body, loads) for body in self.bodies]
        whole = self.whole.rewritten(lambda e: expr.substitute(e, loads))

        def one(values: Values) -> list[Stmt]:
            start = expr.mul(values[blocks.var], expr.index(self.block))
            stmts: list[Stmt] = []
            for reduce, body, scratch in zip(self.reduces, bodies, totals, strict=True):
                stmts += self._sums(reduce, body, scratch, values, start)
                stmts += self._groups(reduce, scratch, start)
            return stmts + self._stores(whole, values, start)

        blocks = Axis(self.nest.builder.var("block"), self.channels // self.block)
        return self.nest.grid([*self.outer, blocks], one, 1 << 30)

    def _along(self, e: Expr, member: Var) -> Expr:
        """`e` with group and member indices replaced by those of the channel."""
        each = expr.index(self.each)
        parts: Values = {
            self.group: expr.binary("floordiv", self.channel, each),
            member: expr.binary("floormod", self.channel, each),
        }
        return simplify(expr.substitute(e, parts), {self.channel: self.channels})

    def _is_contiguous(self, e: Expr) -> bool:
        steps = [expr.coefficient(x.indices[-1], self.channel) for x in expr.loads(e)]
        return all(step in (0, 1) for step in steps)

    def _lanes(self, start: Expr, body: object) -> list[Stmt]:
        return row_of_vectors(self.nest, start, self.block, SUMS * self.nest.lanes, body)  # type: ignore[arg-type]

    def _sums(
        self, reduce: Reduce, body: Expr, scratch: Scratch, values: Values, start: Expr
    ) -> list[Stmt]:
        """Statements that reduce each channel by itself, over the image."""

        def lanes(at: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            acc = self.nest.builder.scratch("acc", reduce.dtype, (width,))
            slot = expr.index(0) if lane is None else lane

            def add(indices: Values) -> list[Stmt]:
                term = expr.substitute(body, {**values, **indices, self.channel: at})
                total = combine(reduce.op, Load(acc, (slot,), reduce.dtype), term)
                return [Store(acc, (slot,), total)]

            return [
                Store(acc, (slot,), identity(reduce.op, reduce.dtype)),
                *self.nest.inside([Axis(v, n) for v, n in reduce.axes[:-1]], {}, add),
                Store(scratch, (at,), Load(acc, (slot,), reduce.dtype)),
            ]

        return self._lanes(start, lanes)

    def _groups(self, reduce: Reduce, scratch: Scratch, start: Expr) -> list[Stmt]:
        """Statements that combine the channels of each group, and store the result for each of its
        channels.
        """
        nest, each = self.nest, self.each
        acc = nest.builder.scratch("group", reduce.dtype, (1,))
        zero = expr.index(0)

        def one(group: Expr) -> list[Stmt]:
            first = expr.add(start, expr.mul(group, expr.index(each)))

            def add(j: Expr) -> list[Stmt]:
                term = Load(scratch, (expr.add(first, j),), reduce.dtype)
                return [
                    Store(acc, (zero,), combine(reduce.op, Load(acc, (zero,), reduce.dtype), term))
                ]

            def spread(j: Expr) -> list[Stmt]:
                return [Store(scratch, (expr.add(first, j),), Load(acc, (zero,), reduce.dtype))]

            return [
                Store(acc, (zero,), identity(reduce.op, reduce.dtype)),
                *nest.serial(each, add, "j"),
                *nest.serial(each, spread, "j"),
            ]

        return nest.serial(self.block // each, one, "g")

    def _stores(self, whole: Output, values: Values, start: Expr) -> list[Stmt]:
        def lanes(at: Expr, width: int, lane: Expr | None) -> list[Stmt]:
            def store(indices: Values) -> list[Stmt]:
                return whole.stores(self.nest, {**values, **indices, self.channel: at})

            return self.nest.inside(self.image, {}, store)

        return self._lanes(start, lanes)
