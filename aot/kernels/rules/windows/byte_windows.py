"""Windows of bytes over images, channels last: depthwise convolutions and those of small groups.

The rows of the image that some rows of the result read are first brought into scratch, with their
padding: what windows share is brought once, and no tap asks where it is. For CPUs with an
instruction that sums the products of words of bytes in long vectors. Owns the loops around tiles,
and how a result is finished; byte_depthwise.py and byte_groups.py own what is in scratch and sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Binary, Cast, Const, Expr, Load, Reduce
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, If, Prefetch, Scratch, Space, Stmt
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.rules.products.tile_ends import sum_with_bias
from aot.kernels.rules.windows.padded import Slide, slide_along

# bytes of a vector's register that the schedules need, which have 32 of them
VECTOR_BYTES = 64
# channels of the result that are finished together, whose bytes fill a vector
TOGETHER = 64
# results of a workgroup, which shares what it makes of its weights
LEAST_RESULTS = 1 << 15
# how much larger than the nearest cache an image is whose rows are asked for before they are read
LARGE = 4


@dataclass(frozen=True)
class ByteWindow:
    """A sum of products of bytes over a window, for each channel of an image.

    Attributes:
        image, weight: what is multiplied.
        down, along: how windows slide.
        channels: of the result.
        padding: what the image is outside.
        rest: what is summed over beside taps.
    """

    reduce: Reduce
    image: Load
    weight: Load
    down: Slide
    along: Slide
    channels: Axis
    padding: int
    rest: tuple[Axis, ...] = ()

    @staticmethod
    def of(nest: Nest, axes: Sequence[Axis], reduce: Reduce, channels: Axis) -> ByteWindow | None:
        """The window of a reduction, which slides along two of `axes`; None where it is none, or
        its target has no instructions for it."""
        target, body = nest.target, reduce.body
        has_words = target.arch == "x86_64" and target.vector_bytes == VECTOR_BYTES
        if nest.is_gpu or not has_words or not target.sums_bytes(DType.U8, DType.I8):
            return None
        if reduce.op != "sum" or reduce.dtype is not DType.I32:
            return None
        if not isinstance(body, Binary) or body.op != "mul":
            return None
        image, weight = _operand(body.a), _operand(body.b)
        if image is None or weight is None or weight.guard is not None:
            return None
        if image.dtype is not DType.U8 or weight.dtype is not DType.I8:
            return None
        if not all(isinstance(load.source, Buffer) for load in (image, weight)):
            return None
        other = 0 if image.other is None else getattr(image.other, "value", None)
        if image.guard is not None and not isinstance(other, int):
            return None
        return _window(axes, reduce, (image, weight), channels, int(other or 0))

    @property
    def taps(self) -> tuple[int, int]:
        return self.down.taps, self.along.taps


def _operand(e: Expr) -> Load | None:
    found = e.a if isinstance(e, Cast) else e
    return found if isinstance(found, Load) else None


def _window(
    axes: Sequence[Axis], reduce: Reduce, loads: tuple[Load, Load], channels: Axis, padding: int
) -> ByteWindow | None:
    image, weight = loads
    conditions = [] if image.guard is None else list(expr.conditions_of(image.guard))
    taps = [Axis(v, n) for v, n in reduce.axes if n != 1]
    spatial = [a for a in axes if _moves(image, a)][-2:]
    if len(spatial) != 2:
        return None
    slides: list[Slide] = []
    # taps that nothing is asked of are told apart by how far they lie apart: nearest along a row
    for at in reversed(spatial):
        asked = [c for c in conditions if at.var in expr.free_vars(c)]
        near = sorted((a for a in taps if _moves(image, a)), key=lambda a: _step(image, a))
        found = slide_along(image, at, taps if asked else near[:1], asked)
        if found is None or found.tap is None:
            return None
        slides.append(found)
        conditions = [c for c in conditions if c not in asked]
        taps = [tap for tap in taps if tap is not found.tap]
    along, down = slides
    if conditions:
        return None
    return ByteWindow(reduce, image, weight, down, along, channels, padding, tuple(taps))


def _step(image: Load, axis: Axis) -> int:
    step = expr.coefficient(image.indices[0], axis.var)
    return step if isinstance(step, int) else 0


def _moves(image: Load, axis: Axis) -> bool:
    return isinstance(axis.extent, int) and _step(image, axis) > 1


def number(axis: Axis) -> int:
    """The extent of an axis, which is known."""
    assert isinstance(axis.extent, int)
    return axis.extent


def even(extent: int, most: int) -> int:
    """The size of equal parts of an extent, none above `most`; the last may overlap."""
    return -(-extent // -(-extent // most))


@dataclass(frozen=True)
class Block:
    """Channels of the result that are computed together.

    Attributes:
        first: the first of them.
        width: how many, known as the code is made.
        image: the first channel of the image that they are of.
        stored: the first one that is stored; None where all are.
    """

    first: Expr
    width: int
    image: Expr
    stored: int | None = None


class ByteTiles(ABC):
    """The tiles of a window and the loops around them.

    Attributes:
        rows: of the result, that share what is brought into scratch.
        piece: results of a row that do so.
        tile: results whose sums are in registers at once.
    """

    tile_results: ClassVar[int]

    def __init__(self, nest: Nest, output: Output, window: ByteWindow, rows: int, row: int) -> None:
        """`rows` is what share scratch at most; `row` the bytes there of a place along a row."""
        self.nest = nest
        self.output = output
        self.window = window
        self.lanes = nest.target.vector_bytes // DType.I32.bytes
        height, width = (number(slide.at) for slide in (window.down, window.along))
        self.rows = min(rows, height)
        # most of the nearest cache: the rest is what is read and stored meanwhile
        most = max(nest.target.l1_bytes * 3 // 4 // row - window.along.taps, 4 * window.along.step)
        self.piece = even(width, max(1, min(most // window.along.step, width)))
        self.tile = even(self.piece, self.tile_results)
        self.named: dict[Expr, Expr] = {}
        bias = sum_with_bias(output, window.reduce)
        is_own = bias is not None and expr.free_vars(bias[1]) == {window.channels.var}
        self.bias = bias if is_own else None
        # what `total` is of
        self.summed: Expr = window.reduce if self.bias is None else self.bias[0]
        self.sums: Scratch = nest.builder.scratch(
            "sums", DType.I32, (self.tile, self.sums_of_result), Space.WORKGROUP
        )

    @property
    def least_bands(self) -> int:
        """The least number of bands per workgroup, which share what is staged for them."""
        return 1

    @property
    def reach(self) -> int:
        """Image rows that the rows sharing scratch are computed from."""
        return self.window.down.places(self.rows)

    @property
    @abstractmethod
    def sums_of_result(self) -> int:
        """Sums of a block's channels of one result."""

    @property
    @abstractmethod
    def blocks(self) -> list[tuple[int, Callable[[Expr], Block]]]:
        """How many blocks there are of each sort, in order, and the n-th of them."""

    def prepare(self, block: Block) -> list[Stmt]:
        """Statements that a block runs once before all its results; none unless overridden."""
        return []

    @abstractmethod
    def fill(self, values: Values, block: Block, down: Expr, along: Expr) -> list[Stmt]:
        """Brings into scratch what windows read from places `down` and `along` on."""

    @abstractmethod
    def add(self, block: Block, row: Expr, first: Expr) -> list[Stmt]:
        """Adds the products of a tile to `sums`: results from `first` on, in row `row` of the rows
        that share scratch.
        """

    @abstractmethod
    def total(self, block: Block, r: Expr, channel: Expr) -> Expr:
        """The final sum with bias of one channel of the block, for result `r` of the tile."""

    def build(self) -> tuple[Stmt, ...]:
        nest, window = self.nest, self.window
        known = {window.down.at, window.along.at, window.channels}
        outer = [a for a in self.output.axes if a not in known]
        height, width = number(window.down.at), number(window.along.at)
        bands = -(-height // self.rows)
        several = -(-LEAST_RESULTS // (self.rows * width * TOGETHER))
        several = min(bands, max(several, self.least_bands))
        several = even(bands, several)
        groups = Axis(nest.builder.var("band"), -(-bands // several))
        column = Axis(nest.builder.var("block"), sum(count for count, _ in self.blocks))

        def body(values: Values) -> list[Stmt]:
            first = expr.mul(values[groups.var], expr.index(several))

            def whole(block: Block) -> list[Stmt]:
                before = self.prepare(block) + self._named()
                return before + self.bands(values, block, first, several)

            return self._of_sorts(self.blocks, values[column.var], whole)

        return nest.grid([*outer, groups, column], body, LEAST_RESULTS)

    def bands(self, values: Values, block: Block, first: Expr, several: int) -> list[Stmt]:
        """Statements for `several` bands from band `first` on, those that exist."""
        height = number(self.window.down.at)

        def band(n: Expr) -> list[Stmt]:
            at = expr.mul(expr.add(first, n), expr.index(self.rows))
            found = self._band(values, block, at)
            if -(-height // self.rows) % several == 0:
                return found
            return [If(expr.binary("lt", at, expr.index(height)), tuple(found))]

        return self.nest.serial(several, band, "band")

    def _of_sorts(
        self,
        sorts: Sequence[tuple[int, Callable[[Expr], Block]]],
        at: Expr,
        body: Callable[[Block], list[Stmt]],
    ) -> list[Stmt]:
        """Statements that build block number `at`, of all sorts in order, and run `body` of it."""
        (count, made), *others = sorts
        if not others:
            return body(made(at))
        then, rest = body(made(at)), expr.sub(at, expr.index(count))
        is_own = expr.binary("lt", at, expr.index(count))
        return [If(is_own, tuple(then), tuple(self._of_sorts(others, rest, body)))]

    def _named(self) -> list[Stmt]:
        """Statements that load what all elements read once, ahead of the loops."""
        stmts: list[Stmt] = []
        self.named = {}
        inside = set(expr.nodes(self.window.reduce))
        for value in self.output.values:
            for load in expr.loads(value):
                if load not in inside and not expr.free_vars(load) and load not in self.named:
                    self.named[load] = self.nest.let(load, stmts, "c")
        return stmts

    def _band(self, values: Values, block: Block, at: Expr) -> list[Stmt]:
        """Statements for the band of result rows that begins at row `at`."""
        nest, window = self.nest, self.window
        down, along = window.down, window.along
        height, width = number(down.at), number(along.at)
        place = expr.mul(at, expr.index(down.step))

        def piece(n: Expr) -> list[Stmt]:
            first = within(n, self.piece, width)
            begin = expr.mul(first, expr.index(along.step))

            def row(v: Expr) -> list[Stmt]:
                y = expr.add(at, v)
                here = {**values, down.at.var: y}
                found = self.tiles(here, block, v, first)
                if height % self.rows == 0:
                    return found
                return [If(expr.binary("lt", y, expr.index(height)), tuple(found))]

            return self.fill(values, block, place, begin) + nest.serial(self.rows, row, "v")

        return nest.serial(-(-width // self.piece), piece, "p")

    def tiles(self, values: Values, block: Block, row: Expr, piece: Expr) -> list[Stmt]:
        """A row of a piece, which begins with result `piece`."""
        count = -(-self.piece // self.tile)
        return self.nest.serial(count, lambda t: self._tile(values, block, row, piece, t), "t")

    def _tile(self, values: Values, block: Block, row: Expr, piece: Expr, t: Expr) -> list[Stmt]:
        """Tile `t` of a row of a piece, which begins with result `piece`."""
        nest, window = self.nest, self.window
        first = within(t, self.tile, self.piece)

        def result(r: Expr) -> list[Stmt]:
            x = expr.add(piece, expr.add(first, r))

            def channel(lane: Expr) -> list[Stmt]:
                c = expr.add(block.first, lane)
                place = {**values, window.along.at.var: x, window.channels.var: c}
                done = {**self.named, self.summed: self.total(block, r, lane)}
                stores = self.output.stores(nest, place, done.get)
                if block.stored is None:
                    return stores
                return [If(expr.binary("ge", c, expr.index(block.stored)), tuple(stores))]

            asked = self._ask_ahead(values, block, row, x)
            return [*asked, nest.spread(block.width, channel)]

        return self.add(block, row, first) + nest.serial(self.tile, result, "r")

    def _ask_ahead(self, values: Values, block: Block, row: Expr, x: Expr) -> list[Stmt]:
        """Prefetches the part of the image below a result that the next rows read and
        these don't.
        """
        window, source = self.window, self.window.image.source
        down, along = window.down, window.along
        assert isinstance(source, Buffer)
        size = dims.product(source.shape)
        if not isinstance(size, int) or size < self.nest.target.l1_bytes * LARGE:
            return []
        first = expr.mul(values[down.at.var], expr.index(down.step))
        begin = expr.add(first, expr.index(self.reach))
        place = expr.mul(x, expr.index(along.step))
        later = {down.at.var: expr.add(values[down.at.var], expr.index(self.rows))}
        later = {**values, **later, along.at.var: x, window.channels.var: block.first}
        stored = Prefetch(self.output.buffer, expr.substitute(self.output.address, later))
        return [
            stored,
            *(
                Prefetch(
                    source,
                    self.image_at(
                        values,
                        block.image,
                        expr.add(begin, expr.index(r)),
                        expr.add(place, expr.index(p)),
                    ),
                )
                for r in range(down.step)
                for p in range(along.step)
            ),
        ]

    def bias_of(self, channel: Expr) -> Expr:
        """The bias that is added to the sum of a channel; 0 without one."""
        if self.bias is None:
            return expr.const(0, DType.I32)
        return expr.substitute(self.bias[1], {self.window.channels.var: channel})

    # What is brought into scratch

    def image_at(self, values: Values, channel: Expr, down: Expr, along: Expr) -> Expr:
        """The address of channel `channel` at a place of the image."""
        window = self.window
        zero = expr.index(0)
        begin: Values = {v: zero for v, _ in window.reduce.axes}
        begin |= {slide.at.var: zero for slide in (window.down, window.along)}
        begin |= {window.channels.var: zero}
        address = expr.substitute(window.image.indices[0], {**values, **begin})
        for slide, place in ((window.down, down), (window.along, along)):
            address = expr.add(address, expr.mul(place, expr.index(slide.stride)))
        return expr.add(address, channel)

    def rows_inside(self, first: Expr) -> Expr | None:
        """The condition that all of a band's rows of the image, from `first` on, exist; None where
        they always do.
        """
        down = self.window.down
        last = expr.add(first, expr.index(down.places(self.rows) - 1))
        bands = -(-number(down.at) // self.rows)
        return expr.all_of(
            c
            for c in (
                self.is_after(down, first),
                self.is_before(down, last, down.places(bands * self.rows)),
            )
            if c is not None
        )

    def is_after(self, slide: Slide, place: Expr) -> Expr | None:
        """Whether a place is not padding before the image; None where none is."""
        return expr.binary("ge", place, expr.index(slide.begin)) if slide.begin > 0 else None

    def is_before(self, slide: Slide, place: Expr, places: int) -> Expr | None:
        """The condition that a place, of `places`, is not past the end of the image; None where
        none is.
        """
        return expr.binary("lt", place, expr.index(slide.end)) if slide.end < places else None

    def is_column(self, place: Expr) -> Expr | None:
        """Whether a place along a row is no padding; None where none is."""
        along = self.window.along
        asked = (self.is_after(along, place), self.is_before(along, place, along.count))
        return expr.all_of(c for c in asked if c is not None)

    def is_row(self, place: Expr) -> Expr | None:
        """Whether a place down the image is no padding; None where none is."""
        down = self.window.down
        bands = -(-number(down.at) // self.rows)
        places = down.places(bands * self.rows)
        asked = (self.is_after(down, place), self.is_before(down, place, places))
        return expr.all_of(c for c in asked if c is not None)

    def loaded(self, address: Expr, guard: Expr | None) -> Expr:
        """A byte of the image, or of its padding."""
        image = self.window.image
        other = None if guard is None else Const(DType.U8, self.window.padding)
        return replace(image, indices=(address,), guard=guard, other=other)


def within(n: Expr, size: int, extent: int) -> Expr:
    """The index at which the n-th part of an extent begins; the last part begins early enough to
    have `size` elements.
    """
    first = expr.mul(n, expr.index(size))
    if extent % size == 0:
        return first
    return expr.binary("min", first, expr.index(extent - size))
