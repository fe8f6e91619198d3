"""Estimates the cost of an op under given layouts of its operands and results.

In elements moved one at a time, as far as layouts make a difference: lanes that walk memory in step
share that price. A pure function of call, types and target; unknown dims are assumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.analysis.accesses import Accesses, Read, accesses_of_call
from aot.analysis.cost.dots import sums_words
from aot.analysis.cost.plan import lanes_of
from aot.analysis.memory.views import memory_order, view_type
from aot.ir import dims
from aot.ir.assumed_extents import LAYOUT
from aot.ir.contraction import ContractionDims
from aot.ir.dims import Dim
from aot.ir.record import Call, Kind
from aot.ir.types import TensorType
from aot.ops.reduction import LAYER_NORM
from aot.ops.selection import CONCAT
from aot.ops.spatial import GRID_SAMPLE
from aot.target.model import Target

# what a dispatch costs, in elements moved
DISPATCH = 2000
# of a contraction's left side, where neighbours along the sum aren't neighbours in memory
FAR_SCALARS = 0.1
# of a byte that is brought to its neighbours along the sum from another plane, as one of a
# transpose in blocks costs 1: 5 ns, and 0.3 (x86-64); few planes are brought together by vectors
FAR_BYTE, FEW_PLANES = 4.0, 32
# of a tap of a depthwise window: where lanes gather, as either its operand or its result has its
# channels side by side; and where both are planes, whose lines are full vectors
GATHERED_TAP, PLANE_TAP = 0.4, 0.06
# of an element that data name among neighbours in memory: of few lines of a cache, out of which
# vectors pick where they can
NAMED_NEIGHBOUR = 0.4
# of a position that is computed of a grid, by itself; vectors of positions share it
POSITION = 4.0


class LayoutCosts:
    """The costs of one op by the layouts of its operands and results.

    Args:
        call: the op, by its dims; the layouts in it don't matter.
    """

    def __init__(self, call: Call, target: Target) -> None:
        self.call = call
        self.target = target
        self.contraction = call.contraction
        self.map = None if call.record.index_map is None else call.record.index_map(call)
        self._known: dict[tuple[int, TensorType, TensorType], float] = {}

    @property
    def is_dense(self) -> bool:
        """Whether the op can only read and write dense memory."""
        record = self.call.record
        return record.compute is None or record.kind.has_handwritten_kernel

    def result(self, number: int, type: TensorType) -> float:
        """The cost of writing result `number` as `type`."""
        if self.is_dense or self.map is not None:
            return 0.0
        if self.call.record is CONCAT:
            return 0.0
        count, lanes = _count(type.dims), self._lanes(type)
        if self.contraction is not None:
            is_along = innermost(type) == self.contraction.column
            return count / lanes if is_along else float(count)
        return count / lanes

    def operand(self, number: int, type: TensorType, result: TensorType) -> float:
        """The cost of reading operand `number` as `type`, with the first result stored as
        `result`."""
        key = (number, type, result)
        if key not in self._known:
            self._known[key] = self._operand(number, type, result)
        return self._known[key]

    def _operand(self, number: int, type: TensorType, result: TensorType) -> float:
        if self.map is not None:
            return self._moved(type, result)
        if self.is_dense:
            return 0.0 if type.layout is None else copy_cost(type, self.target)
        kind = self.call.record.kind
        if self.call.record is CONCAT:
            return self._joined(type, result)
        if self.contraction is not None:
            return self._contracted(self.contraction, number, type, result)
        if kind is Kind.ELEMENTWISE:
            return self._elementwise(type, result)
        if self.call.record is GRID_SAMPLE and number == 1 and not self.target.has_workgroups:
            return self._positions(result)
        return self._computed(number, type, result)

    def _positions(self, result: TensorType) -> float:
        """The cost of computing a grid's positions, which are equal for all channels: in vectors
        along the result's innermost dim, or one by one where lanes run along channels.
        """
        count = _count([n for d, n in enumerate(result.dims) if d != 1])
        return POSITION * count / (1 if innermost(result) == 1 else self._lanes(result))

    def _lanes(self, type: TensorType) -> int:
        """The lanes in use when lanes run along the innermost dim of `type`; for a norm, along the
        two innermost.
        """
        wide = [d for d in memory_order(type) if type.dims[d] != 1]
        is_norm = self.call.record is LAYER_NORM and not self.target.has_workgroups
        along = wide[-2:] if is_norm else wide[-1:]
        return min(lanes_of_type(self.target, type), _count([type.dims[d] for d in along]))

    def _moved(self, type: TensorType, result: TensorType) -> float:
        """The cost of a transpose, reshape or slice: zero where the result can be a view, possibly
        with gaps."""
        assert self.map is not None
        seen = view_type(self.map, type)
        if seen is not None and lie_alike(seen, result):
            return 0.0
        if self.call.record.compute is None:
            return copy_cost(type, self.target)
        return (
            DISPATCH + self._computed(0, type, result) + _count(result.dims) / self._lanes(result)
        )

    def _joined(self, type: TensorType, result: TensorType) -> float:
        """The cost of a part of a concat: zero where the part can be computed in place."""
        return 0.0 if lie_alike(type, result) else copy_cost(type, self.target)

    def _contracted(
        self, contraction: ContractionDims, number: int, type: TensorType, result: TensorType
    ) -> float:
        left, right, count = contraction.left, contraction.right, _count(type.dims)
        if number == left.operand:
            if contraction.is_depthwise and contraction.windows and not self.target.has_workgroups:
                return self._depthwise(contraction, type, result)
            if innermost(type) == left.summed:
                return 0.0
            if not self.target.has_workgroups and sums_words(contraction):
                # each tap of each row is brought together, one element at a time
                price = 1.0 if _count([contraction.k]) <= FEW_PLANES else FAR_BYTE
                return price * _count([contraction.batch, contraction.m, contraction.k])
            return FAR_SCALARS * count
        # filters, which are constants as a rule, are packed as the plan wants them
        if number != right.operand or contraction.windows or innermost(type) in right.own:
            return 0.0
        # lanes gather it once a tile of rows
        return count * max(1.0, _count([left.type.dims[left.own[-1]]]) / 8)

    def _depthwise(
        self, contraction: ContractionDims, type: TensorType, result: TensorType
    ) -> float:
        """The cost of a depthwise convolution's reads, whose lanes run along channels or along
        image rows.
        """
        reads_channels = innermost(type) == contraction.left.summed
        if reads_channels and innermost(result) == contraction.column:
            return 0.0
        taps = _count([window.kernel for window in contraction.windows])
        count = _count(result.dims) * taps
        if reads_channels or innermost(result) == contraction.column:
            return GATHERED_TAP * count
        lanes = lanes_of_type(self.target, type)
        line = _count([result.dims[contraction.row_axis]])
        return PLANE_TAP * count * max(1.0, lanes / line)

    def _elementwise(self, type: TensorType, result: TensorType) -> float:
        lanes = lanes_of_type(self.target, type)
        inner = innermost(result)
        position = inner - (result.rank - type.rank)
        if position < 0 or type.dims[position] == 1:
            return 0.0
        count = _count(result.dims)
        return count / lanes if innermost(type) == position else float(count)

    def _computed(self, number: int, type: TensorType, result: TensorType) -> float:
        """The cost of an op's loads, from their strides between lanes along the result's innermost
        dim, or along the innermost reduced dim."""
        total = 0.0
        for accesses in accesses_of_call(self.call):
            if not accesses.rank:
                continue
            lane = innermost(result)
            for read in accesses.of(number):
                times = _count([accesses.extents[v] for v in _around(accesses, read)])
                price = self._price(read, type, lane, self._lanes(result))
                price += self._repeated(read, type, result)
                last = [v for v in read.axes if accesses.extents[v] != 1][-1:]
                if last:
                    along = self._price(read, type, last[0], lanes_of_type(self.target, type))
                    price = min(price, along)
                total += times * price
        return total

    def _repeated(self, read: Read, type: TensorType, result: TensorType) -> float:
        """The cost per element of a read that repeats along the result's short innermost dim:
        vectors run along the dim before it, and each of their elements is stored once per repeat. 0
        where the read is of another kind.
        """
        wide = [d for d in memory_order(result) if result.dims[d] != 1]
        lanes = lanes_of_type(self.target, type)
        times = _count([result.dims[d] for d in wide[-1:]])
        if self.call.record.kind is not Kind.MOVEMENT or len(wide) < 2 or times >= lanes:
            return 0.0
        if any(s.depends_on(wide[-1]) for s in read.subscripts):
            return 0.0
        return self._price(read, type, wide[-2], lanes) / times

    def _price(self, read: Read, type: TensorType, lane: int, lanes: int) -> float:
        """The cost of one element of a read, with lanes along variable `lane`."""
        # where movement asks a condition is known for whole segments, of which few fill a vector of
        # narrow elements
        is_asked = self.call.record.kind is not Kind.MOVEMENT or type.dtype.bits < 32
        if is_asked and any(c.depends_on(lane) for c in read.conditions):
            return 1.0
        step: Dim | None = 0
        for subscript, stride in zip(read.subscripts, type.strides, strict=True):
            by = subscript.steps[lane]
            if by is None or step is None:
                others = (s.steps[lane] for s in read.subscripts if s is not subscript)
                if stride != 1 or any(n != 0 for n in others):
                    return 1.0
                if subscript.has_data:
                    return NAMED_NEIGHBOUR
                return 1.0 if is_asked else 1 / lanes
            step = dims.add(step, dims.multiply(by, stride))
        if step == 0:
            return 0.25 / lanes
        return 1 / lanes if step == 1 else 1.0


def _around(accesses: Accesses, read: Read) -> list[int]:
    """The variables whose loops surround a read: all of the result's, or, for a read inside
    reductions, those that the reductions depend on and its own axes.
    """
    own = set(read.axes)
    inside = [r for r in accesses.reductions if own.issuperset(r.axes)]
    dims = {d for r in inside for d in r.dims} if inside else range(accesses.rank)
    return sorted({*dims, *own})


def lie_alike(a: TensorType, b: TensorType) -> bool:
    """Whether two types have the same memory order of dims, ignoring dims of extent 1."""
    wide = [d for d in range(a.rank) if a.dims[d] != 1 and b.dims[d] != 1]
    return [d for d in memory_order(a) if d in wide] == [d for d in memory_order(b) if d in wide]


def lanes_of_type(target: Target, type: TensorType) -> int:
    """Elements of `type` that one vector operation processes; on a GPU, lanes whose accesses
    coalesce.
    """
    return min(16, lanes_of(target, max(type.dtype.bytes, 4)))


def copy_cost(type: TensorType, target: Target) -> float:
    """The cost of copying a value from one memory order of dims to another."""
    count = _count(type.dims)
    return DISPATCH + count + count / lanes_of_type(target, type)


def innermost(type: TensorType) -> int:
    """The dim with stride 1 in memory."""
    wide = [d for d in memory_order(type) if type.dims[d] != 1]
    return wide[-1] if wide else max(type.rank - 1, 0)


def _count(extents: Sequence[Dim]) -> int:
    total = 1
    for extent in extents:
        known = dims.estimate(extent, LAYOUT)
        total *= LAYOUT if known is None else max(known, 1)
    return total
