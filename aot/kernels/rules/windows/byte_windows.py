"""Windows of 8-bit channels-last images: the common parts of depthwise and small grouped
convolutions.

The rows of the image that some rows of the result read are first brought into scratch, with their
padding: what windows share is brought once, and no tap asks where it is. For CPUs with an
instruction that sums the products of words of bytes in long vectors. Owns the loops around tiles,
and how a result is finished; byte_depthwise.py and byte_groups.py own what is in scratch and sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import ClassVar

from aot.base.records import dataclass
from aot.ir import dims, expr
from aot.ir.expr import Binary, Cast, Const, Dot, Expr, Load, Reduce
from aot.ir.types import DType
from aot.kernels.ir.nodes import Buffer, Scratch, Space, Stmt, Store
from aot.kernels.match.slides import Slide, first_window, slide_along, slides_of
from aot.kernels.nest.nest import Axis, Nest, Output, Values
from aot.kernels.rules.products.tile_ends import sum_with_bias
from aot.kernels.stage.ahead import prefetch
from aot.kernels.stage.tails import below, even, shifted, where, within
from aot.kernels.stage.vectors import unrolled_vectors

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
    """A windowed sum of 8-bit products, for each channel of an image.

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
        """The window of a reduction that slides along two of `axes`; None where it is none, or the
        target lacks the instructions."""
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
    spatial = [a for a in axes if _moves(image, a)][-2:]
    if len(spatial) != 2:
        return None

    def find(
        at: Axis, taps: Sequence[Axis], asked: Sequence[Expr], before: Sequence[Slide]
    ) -> Slide | None:
        # taps that nothing is asked of are told apart by how far they lie apart: nearest along rows
        near = sorted((a for a in taps if _moves(image, a)), key=lambda a: _step(image, a))
        slide = slide_along(image, at, taps if asked else near[:1], asked)
        return None if slide is None or slide.tap is None else slide

    found = slides_of(image, reduce, spatial[::-1], find)
    if found is None:
        return None
    along, down = found.along
    return ByteWindow(reduce, image, weight, down, along, channels, padding, found.rest)


def _step(image: Load, axis: Axis) -> int:
    step = expr.coefficient(image.indices[0], axis.var)
    return step if isinstance(step, int) else 0


def _moves(image: Load, axis: Axis) -> bool:
    return isinstance(axis.extent, int) and _step(image, axis) > 1


@dataclass(frozen=True)
class Block:
    """A block of result channels that are computed together.

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


Fill = Callable[[Values, Block, Expr, Expr], list[Stmt]]
"""Brings into scratch what windows read from places down the image and along it on."""


Product = Callable[[Expr, Expr], tuple[Load, Load]]
"""The words of the image and of the weights that a result's sum has in a lane."""


class ByteTiles(ABC):
    """The tiles of an 8-bit window and the loops around them.

    Attributes:
        rows: of the result, that share what is brought into scratch.
        piece: results of a row that do so.
        tile: results whose sums are in registers at once.
    """

    tile_results: ClassVar[int]

    def __init__(
        self, nest: Nest, output: Output, window: ByteWindow, rows: int, place_bytes: int
    ) -> None:
        """
        Args:
            rows: the most result rows that share what is staged in scratch.
            place_bytes: bytes in scratch of one place along a row.
        """
        self.nest = nest
        self.output = output
        self.window = window
        self.lanes = nest.target.vector_bytes // DType.I32.bytes
        height, width = (slide.at.count for slide in (window.down, window.along))
        self.rows = min(rows, height)
        # most of the nearest cache: the rest is what is read and stored meanwhile
        places = nest.target.l1_bytes * 3 // 4 // place_bytes - window.along.taps
        most = max(places, 4 * window.along.step)
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
        """The number of image rows from which the result rows that share scratch are computed."""
        return self.window.down.places(self.rows)

    @property
    @abstractmethod
    def sums_of_result(self) -> int:
        """The number of sums of one result in a block, over its channels."""

    @property
    @abstractmethod
    def blocks(self) -> list[tuple[int, Callable[[Expr], Block]]]:
        """(count, function to the n-th block) for each kind of block, in order."""

    def prepare(self, block: Block) -> list[Stmt]:
        """Statements that a block runs once before all its results; none unless overridden."""
        return []

    @abstractmethod
    def bands(self, values: Values, block: Block, first: Expr, several: int) -> list[Stmt]:
        """Statements for `several` bands from band `first` on, those that exist."""

    @abstractmethod
    def add(self, block: Block, row: Expr, first: Expr) -> list[Stmt]:
        """Statements that add a tile's products to `sums`: results from `first`, in row `row` of
        the rows that share scratch.
        """

    @abstractmethod
    def total(self, block: Block, r: Expr, channel: Expr) -> Expr:
        """The final sum with bias of one channel of the block, for result `r` of the tile."""

    def build(self) -> tuple[Stmt, ...]:
        nest, window = self.nest, self.window
        known = {window.down.at, window.along.at, window.channels}
        outer = [a for a in self.output.axes if a not in known]
        height, width = window.down.at.count, window.along.at.count
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

    def filled_bands(
        self, values: Values, block: Block, first: Expr, several: int, fill: Fill
    ) -> list[Stmt]:
        """`bands`, with scratch filled by `fill` before each band's results."""
        height = self.window.down.at.count
        are_whole = -(-height // self.rows) % several == 0

        def band(n: Expr) -> list[Stmt]:
            at = expr.mul(expr.add(first, n), expr.index(self.rows))
            found = self._band(values, block, at, fill)
            return where(None if are_whole else below(at, height), found)

        return self.nest.serial(several, band, "band")

    def _of_sorts(
        self,
        sorts: Sequence[tuple[int, Callable[[Expr], Block]]],
        at: Expr,
        body: Callable[[Block], list[Stmt]],
    ) -> list[Stmt]:
        """Statements that build block number `at`, counted over all kinds in order, and run `body`
        on it."""
        (count, made), *others = sorts
        if not others:
            return body(made(at))
        then, rest = body(made(at)), expr.sub(at, expr.index(count))
        return where(below(at, count), then, self._of_sorts(others, rest, body))

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

    def _band(self, values: Values, block: Block, at: Expr, fill: Fill) -> list[Stmt]:
        """Statements for the band of result rows that begins at row `at`."""
        nest, window = self.nest, self.window
        down, along = window.down, window.along
        height, width = down.at.count, along.at.count
        place = expr.mul(at, expr.index(down.step))

        def piece(n: Expr) -> list[Stmt]:
            first = shifted(n, self.piece, width)
            begin = expr.mul(first, expr.index(along.step))

            def row(v: Expr) -> list[Stmt]:
                y = expr.add(at, v)
                here = {**values, down.at.var: y}
                return where(within(y, height, self.rows), self.tiles(here, block, v, first))

            return fill(values, block, place, begin) + nest.serial(self.rows, row, "v")

        return nest.serial(-(-width // self.piece), piece, "p")

    def tiles(self, values: Values, block: Block, row: Expr, piece: Expr) -> list[Stmt]:
        """Statements for the tiles of a row in the piece that begins at result `piece`."""
        count = -(-self.piece // self.tile)
        return self.nest.serial(count, lambda t: self._tile(values, block, row, piece, t), "t")

    def _tile(self, values: Values, block: Block, row: Expr, piece: Expr, t: Expr) -> list[Stmt]:
        """Statements that compute and store tile `t` of a row in the piece that begins at result
        `piece`."""
        nest, window = self.nest, self.window
        first = shifted(t, self.tile, self.piece)

        def result(r: Expr) -> list[Stmt]:
            x = expr.add(piece, expr.add(first, r))

            def channel(lane: Expr) -> list[Stmt]:
                c = expr.add(block.first, lane)
                place = {**values, window.along.at.var: x, window.channels.var: c}
                done = {**self.named, self.summed: self.total(block, r, lane)}
                stores = self.output.stores(nest, place, done.get)
                if block.stored is None:
                    return stores
                return where(expr.binary("ge", c, expr.index(block.stored)), stores)

            asked = self._ask_ahead(values, block, x)
            return [*asked, nest.spread(block.width, channel)]

        return self.add(block, row, first) + nest.serial(self.tile, result, "r")

    def _ask_ahead(self, values: Values, block: Block, x: Expr) -> list[Stmt]:
        """Prefetches the part of the image that the next result rows read and the current ones do
        not.
        """
        window, source = self.window, self.window.image.source
        down, along = window.down, window.along
        assert isinstance(source, Buffer)
        size = dims.product(source.shape)
        if not isinstance(size, int) or size < self.nest.target.l1_bytes * LARGE:
            return []
        begin = expr.linear((values[down.at.var], down.step), self.reach)
        place = expr.mul(x, expr.index(along.step))
        later = {down.at.var: expr.linear(values[down.at.var], self.rows)}
        later = {**values, **later, along.at.var: x, window.channels.var: block.first}
        stmts = prefetch(self.output.buffer, expr.substitute(self.output.address, later))
        for r, p in product(range(down.step), range(along.step)):
            at = expr.linear(begin, r), expr.linear(place, p)
            stmts += prefetch(source, self.image_at(values, block.image, *at))
        return stmts

    def in_registers(
        self,
        nothing: Callable[[Expr], Expr],
        terms: Callable[[Callable[[Product], list[Stmt]]], list[Stmt]],
        first: Expr,
    ) -> list[Stmt]:
        """Statements that accumulate one vector of each of a tile's results in registers, and store
        it to the sums.

        Args:
            nothing: gives the value that the sum of a lane begins with.
            terms: given what adds a product to all sums, the statements that add all products.
            first: the place in `sums` of the first lane.
        """
        nest, lanes = self.nest, self.lanes
        acc = nest.builder.scratch("acc", DType.I32, (self.tile, lanes))

        def each(body: Callable[[Expr, Expr], Stmt]) -> list[Stmt]:
            return unrolled_vectors(nest, (self.tile,), lanes, lambda *at: [body(*at)], "r")

        def added(product: Product) -> list[Stmt]:
            def one(r: Expr, lane: Expr) -> Stmt:
                left, right = product(r, lane)
                return Store(acc, (r, lane), Dot(left, right, Load(acc, (r, lane), DType.I32)))

            return each(one)

        def stored(r: Expr, lane: Expr) -> Stmt:
            return Store(self.sums, (r, expr.add(first, lane)), Load(acc, (r, lane), DType.I32))

        begun = each(lambda r, lane: Store(acc, (r, lane), nothing(lane)))
        return begun + terms(added) + each(stored)

    def bias_of(self, channel: Expr) -> Expr:
        """The bias that is added to the sum of a channel; 0 without one."""
        if self.bias is None:
            return expr.const(0, DType.I32)
        return expr.substitute(self.bias[1], {self.window.channels.var: channel})

    # What is brought into scratch

    def image_at(self, values: Values, channel: Expr, down: Expr, along: Expr) -> Expr:
        """The address of channel `channel` at a place of the image."""
        window, slides = self.window, (self.window.down, self.window.along)
        begin = {**first_window(window.reduce, *slides), window.channels.var: expr.index(0)}
        address = expr.substitute(window.image.indices[0], {**values, **begin})
        return expr.linear(address, (down, slides[0].stride), (along, slides[1].stride), channel)

    @property
    def reach_of_rows(self) -> int:
        """The number of image rows that all bands read, including padding."""
        down = self.window.down
        return down.places(-(-down.at.count // self.rows) * self.rows)

    def is_column(self, place: Expr) -> Expr | None:
        """The condition that a place along a row is not padding; None if no place is padding."""
        along = self.window.along
        return along.is_there(place, place, along.count)

    def loaded(self, address: Expr, guard: Expr | None) -> Expr:
        """The load of an image byte; the padding value where `guard` fails."""
        image = self.window.image
        other = None if guard is None else Const(DType.U8, self.window.padding)
        return replace(image, indices=(address,), guard=guard, other=other)
