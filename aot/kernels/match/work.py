"""A loop nest to be built, with the facts that rules need about it, each computed once.

Owns the facts that several rules share: each is found when the first of them asks. Chooses none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from aot.base.records import dataclass
from aot.ir.graph import Op, Value
from aot.ir.record import call_of, contraction_of
from aot.ir.schedule import StageSchedule
from aot.kernels.ir.nodes import Stmt
from aot.kernels.match.elements import Elements
from aot.kernels.match.products import ContractionAxes, merged_axes
from aot.kernels.match.reduced import Reduced, as_memory_lies
from aot.kernels.match.resized import nested, written_out
from aot.kernels.match.windows import Window, find_window
from aot.kernels.nest.inline import reduces_of
from aot.kernels.nest.nest import Nest, Output
from aot.ops.blocked import MATMUL_BLOCKED, PANEL, STORED, Blocks, blocks_of
from aot.ops.integer_contraction import MAX_WEIGHT

Loops = tuple[Stmt, ...]
Build = Callable[[], Loops]
"""What builds a nest that a rule has found to be one of its own."""


@dataclass(frozen=True)
class Work:
    """A loop nest to be built, and what rules match on.

    Attributes:
        nest: what it is built from, for a target.
        output: what it stores, an expression an element.
        plan: the class and the tiles that are recorded of it.
        ops: what it is of, in the graph's words.
        is_alone: whether it has a kernel to itself, and so lanes of its own.
        build_part: builds a part of it by whichever rule can.
    """

    nest: Nest
    output: Output
    plan: StageSchedule
    ops: tuple[Op, ...]
    is_alone: bool
    build_part: Callable[[Work], Loops]

    def part(self, output: Output) -> Loops:
        """Builds the loops of one part of the result, with a rule chosen for that part."""
        return self.build_part(replace(self, output=output, plan=replace(self.plan, rule="")))

    @cached_property
    def blocks(self) -> Blocks | None:
        """The block format of the product's weights, where these are stored operands in blocks;
        else None."""
        found = next((op for op in self.ops if op.record is MATMUL_BLOCKED), None)
        if found is None:
            return None
        stored = [v for n, v in enumerate(found.operands) if n in STORED]
        return None if any(map(_is_changed, stored)) else blocks_of(call_of(found))

    @property
    def panel(self) -> int:
        """The number of columns in a panel of the product's weights."""
        return self.nest.target.panel if self.blocks is None else PANEL

    @cached_property
    def max_weight(self) -> int:
        """The largest magnitude of the weights in the nest's integer products."""
        found = (contraction_of(op) for op in self.ops)
        known = (dims.max_weight for dims in found if dims is not None)
        return max((n for n in known if n is not None), default=MAX_WEIGHT.default)

    @cached_property
    def has_windows(self) -> bool:
        """Whether the nest is a convolution, 1x1 included."""
        found = map(contraction_of, self.ops)
        return any(dims is not None and dims.windows for dims in found)

    @cached_property
    def is_long(self) -> bool:
        """Whether an element's reductions have too many terms for a single lane of a GPU."""
        return is_long_for_a_lane(self.nest, self.output)

    @cached_property
    def product(self) -> tuple[Output, ContractionAxes] | None:
        """(output with neighbouring axes merged, contraction axes); None if the nest has no
        contraction."""
        return merged_axes(self.output)

    @cached_property
    def elements(self) -> Elements:
        """The nest as element-wise loops with merged axes, for nests without reductions."""
        return Elements(self.nest, self.output)

    @cached_property
    def reduced(self) -> Reduced:
        """The nest's reductions, with inner ones of nested pairs unrolled. On a CPU their axes
        follow memory order, if a reduction serves several elements or is the whole result."""
        output = self.output
        while (pair := nested(output)) is not None:
            output = written_out(output, pair[0])
        found = Reduced.of(output)
        is_whole = all(axis.extent == 1 for axis in found.output.axes)
        if self.nest.is_gpu or not (found.free or is_whole):
            return found
        return Reduced.of(as_memory_lies(output, found.reduces))

    @cached_property
    def window(self) -> Window | None:
        """The windowed reduction that the nest computes; None if it is none, or a reduction serves
        several elements."""
        found = self.reduced
        return None if found.free else find_window(self.nest, found.output, found.reduces)


def is_long_for_a_lane(nest: Nest, output: Output) -> bool:
    """Whether an element's reductions have too many terms for a single lane of a GPU."""
    return nest.is_too_long(*([n for _, n in r.axes] for r in reduces_of(output.value)))


def _is_changed(value: Value | None) -> bool:
    """Whether a stored operand was computed or had its layout changed, instead of being given to
    the program as it is."""
    return value is not None and (value.op is not None or value.type.layout is not None)
