"""Estimates the machine code size of an executable's stages on a CPU.

Counts what a schedule writes out: a body for each shape of tile, with its rows and vectors, its
guards, masks and epilogue, and what extents that are parameters add. Decides nothing. It follows
`aot/kernels/rules`, products/contraction.py and windows/windows.py above all.

The bytes of each part were fitted to the code of the reference models' executables, with kernels of
their own and with those they share, for each architecture and width of vectors: `code_bytes.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from aot.analysis.cost.code_bytes import FITTED, Fit
from aot.analysis.cost.plan import FEW_VECTORS, UNROLLED_TAPS, Plan, rest_chunks, tail_rows
from aot.analysis.cost.tile_costs import DynamicLoops, KernelModel, Loops, Tile, extents_of
from aot.base.records import dataclass
from aot.ir.dims import Dim, modulo
from aot.ir.graph import Op
from aot.ir.record import Call, Kind
from aot.target.model import Target

# kernels that are one program each
_OTHERS = {
    Kind.ATTENTION: "attention",
    Kind.RECURRENCE: "recurrence",
    Kind.SCAN: "scan",
    Kind.SORT: "sort",
}
_USUAL = "x86_64/32"
# the fits by which what sharing saves of every reference model is known to a quarter
_SURE = frozenset({"x86_64/32", "x86_64/16", "aarch64/16", "riscv64/16", "wasm32/16"})
_MOST_STEPS = 64  # powers of two beyond it decide nothing
# elementwise ops around a sum from which on they are written once a tile, in loops
_LONG_PRODUCTS, _LONG_WINDOW = 5, 3


class CodeModel(NamedTuple):
    """The features of a stage's ops that determine its code size.

    Attributes:
        kind: of its heaviest op.
        cheap: its elementwise ops of about an instruction each.
        dear: the others, which are polynomials.
        taps: of a window, along its innermost axis, if they are written out.
        is_padded: whether taps of a window may lie outside.
    """

    kind: Kind
    cheap: int
    dear: int
    taps: int = 1
    is_padded: bool = False

    @staticmethod
    def of(ops: Sequence[Op], call: Call) -> CodeModel:
        """The code model of a stage, from its ops and the call of the heaviest one."""
        elementwise = [op for op in ops if op.record.kind is Kind.ELEMENTWISE]
        cheap = sum(op.record.is_cheap for op in elementwise)
        contraction, taps, is_padded = call.contraction, 1, False
        if contraction is not None and contraction.windows:
            kernel = contraction.windows[-1].kernel
            taps = kernel if isinstance(kernel, int) else 1
            is_padded = contraction.is_padded
        elif "kernel" in call.attrs:
            taps = call.ints("kernel")[-1]
            is_padded = any(pad != 0 for pad in call.dims("pads"))
        written = taps if taps <= UNROLLED_TAPS else 1
        return CodeModel(call.record.kind, cheap, len(elementwise) - cheap, written, is_padded)


class Body(NamedTuple):
    """The code for one shape of tile.

    Attributes:
        has_all_rows, has_all_columns: whether nothing of it asks what is there.
        is_common: whether it stands with loops for tiles inside of borders, too.
    """

    rows: int
    columns: int
    has_all_rows: bool
    has_all_columns: bool
    is_common: bool = True


class Steps(NamedTuple):
    """Powers of two that divide the rows and columns of a stage."""

    rows: int = 1
    columns: int = 1

    @staticmethod
    def of(call: Call, made: Plan) -> Steps:
        """The steps of a stage whose heaviest op is `call` and runs as the plan `made`."""
        rows, columns, _ = extents_of(call, made)
        return Steps(_step(rows), _step(columns))

    def with_(self, other: Steps) -> Steps:
        """The powers of two that divide the rows and columns of both stages."""
        return Steps(min(self.rows, other.rows), min(self.columns, other.columns))


def _step(dim: Dim) -> int:
    step = _MOST_STEPS
    while modulo(dim, step) != 0:
        step //= 2
    return step


@dataclass(frozen=True)
class StageCode:
    """The features of a stage that determine its code size, except its tile and which extents are
    dynamic.

    Attributes:
        loops: of one of its dispatches: what is not dynamic is the same in all.
    """

    code: CodeModel
    kernel: KernelModel
    loops: Loops

    @property
    def form(self) -> str:
        """The form of the stage's loops, a key of the table in `code_bytes.py`."""
        other = _OTHERS.get(self.code.kind)
        return other if other is not None else self.kernel.form

    def bytes(self, fit: Fit, steps: Steps, tile: Tile, dynamic: DynamicLoops) -> float:
        """The estimated bytes of the stage in a dispatch of its own."""
        form = fit.get(self.form, fit["stream"])
        return sum(
            form.get(n, 0.0) * count for n, count in self.parts(steps, tile, dynamic).items()
        )

    def parts(self, steps: Steps, tile: Tile, dynamic: DynamicLoops) -> Counter[str]:
        """The number of occurrences of each kind of part in the code."""
        code, kernel = self.code, self.kernel
        found: Counter[str] = Counter({"kernel": 1, "parameters": sum(dynamic)})
        if kernel.form == "winograd":
            vectors = tile[1] // kernel.lanes
            found.update({"vectors": vectors, "cheap": code.cheap, "dear": code.dear})
        elif kernel.form == "products":
            is_bordered = kernel.is_padded and (dynamic.rows or self.loops.rows > tile[0])
            for body in _product_bodies(kernel, self.loops, steps, tile, dynamic):
                found.update(_product_parts(code, kernel, body, dynamic, is_bordered=is_bordered))
        elif kernel.form == "window":
            is_bordered = code.is_padded and (dynamic.rows or self.loops.rows > tile[0])
            for body in _window_bodies(kernel, self.loops, steps, tile, dynamic):
                found.update(_window_parts(code, kernel, body, dynamic, is_bordered=is_bordered))
        else:
            is_sum = code.kind is Kind.REDUCTION
            found.update({"cheap": code.cheap, "dear": code.dear, "sum": is_sum})
        return found


def executable_bytes(fit: Fit, stages: Sequence[float]) -> float:
    """The estimated bytes of an executable, given the bytes of its stages."""
    return sum(stages) * (1.0 if len(stages) == 1 else fit["stages"]["several"])


def fit_name(target: Target) -> str:
    """The name of a target's fit: its architecture and vector bytes."""
    return f"{target.arch}/{target.vector_bytes}"


def is_sure(target: Target) -> bool:
    """Whether the estimated saving of sharing code is accurate to a quarter."""
    return fit_name(target) in _SURE


def fit_of(target: Target) -> Fit:
    """The fitted bytes of each part on a target; those of a common target if it has no fit."""
    return FITTED.get(fit_name(target), FITTED[_USUAL])


@dataclass(frozen=True)
class CodeEstimate:
    """Estimated code bytes of executables, accurate up to one common factor.

    Attributes:
        own: by executable as `outline` left them, with kernels of their own.
        kept: by executable as `despecialise` left them.
        is_sure: whether it tells what sharing saves to a quarter: kernels that share and those that
            don't may differ from it by other factors.
    """

    own: Mapping[str, float]
    kept: Mapping[str, float]
    is_sure: bool


def _product_bodies(
    kernel: KernelModel,
    loops: Loops,
    steps: Steps,
    tile: Tile,
    dynamic: DynamicLoops,
) -> Iterator[Body]:
    rows, columns = tile if dynamic.rows else (min(tile[0], loops.rows), tile[1])
    width = min(columns, kernel.panel)
    is_divided = (steps.columns if dynamic.columns else loops.columns) % columns == 0
    shapes = [(columns, is_divided)]
    if dynamic.columns and not is_divided and columns != width:
        has_all = steps.columns % width == 0
        rest = [(chunks * width, has_all) for chunks in rest_chunks(columns // width)]
        shapes = [(columns, True), *rest]
    for across, has_columns in shapes:
        height = tail_rows(rows, across, kernel.lanes)
        for high, has_rows in _heights(loops.rows, steps.rows, rows, height, is_open=dynamic.rows):
            yield Body(high, across, has_rows, has_columns)


def _heights(
    total: int, step: int, rows: int, low: int, *, is_open: bool
) -> list[tuple[int, bool]]:
    """(height, whether all its rows are always in bounds) of each tile that a kernel
    has code for.
    """
    if not is_open:
        return [(rows, total % rows == 0)]
    if step % rows == 0 or not low:
        return [(rows, step % rows == 0)]
    return [(rows, True), (low, step % low == 0 and rows % low == 0)]


def _product_parts(
    code: CodeModel, kernel: KernelModel, body: Body, dynamic: DynamicLoops, *, is_bordered: bool
) -> dict[str, int]:
    vectors = max(1, body.columns // kernel.lanes)
    sums = body.rows * vectors
    times = 2 if is_bordered else 1  # inside of borders and at them
    is_long = code.dear > 0 or code.cheap >= _LONG_PRODUCTS
    return {
        "body": 1,
        "bordered body": times - 1,
        "row": body.rows * times,
        "bordered row": body.rows * (times - 1),
        "vector": vectors * times,
        "sum": sums * times,
        "guarded row": 0 if body.has_all_rows else body.rows,
        "masked sum": 0 if body.has_all_columns else sums,
        "asked sum": sums if dynamic.columns and not body.has_all_columns else 0,
        "dynamic body": any(dynamic),
        "dynamic row": body.rows * times if any(dynamic) else 0,
        "dynamic sum": sums * times if any(dynamic) else 0,
        "endless row": body.rows * times if dynamic.terms else 0,
        "endless sum": sums * times if dynamic.terms else 0,
        "own weights": not kernel.is_packed,
        **_epilogue(code, sums, is_long=is_long),
    }


def _epilogue(code: CodeModel, sums: int, *, is_long: bool) -> dict[str, int]:
    if is_long:
        return {"looped": 1, "cheap": code.cheap, "dear": code.dear, "kept sum": sums}
    return {"stored sum": sums, "cheap of a sum": sums * code.cheap}


def _window_bodies(
    kernel: KernelModel,
    loops: Loops,
    steps: Steps,
    tile: Tile,
    dynamic: DynamicLoops,
) -> Iterator[Body]:
    rows = tile[0] if dynamic.rows else max(1, min(tile[0], loops.rows))
    width = min(kernel.lanes, max(tile[1], 1))
    chunks = max(1, tile[1] // width)
    shapes = list(_widths(loops.columns, steps.columns, chunks, width, is_open=dynamic.columns))
    for across, has_columns in shapes:
        is_rest = dynamic.columns and across < shapes[0][0]
        low = 0 if is_rest else rows // 2
        for high, has_rows in _heights(loops.rows, steps.rows, rows, low, is_open=dynamic.rows):
            yield Body(high, across, has_rows, has_columns, not is_rest and high == rows)


def _widths(
    total: int, step: int, chunks: int, width: int, *, is_open: bool
) -> Iterator[tuple[int, bool]]:
    """(width, whether it is always full) of each tile along a window's lanes that a kernel has code
    for.
    """
    if is_open:
        yield chunks * width, True
        if step % (chunks * width):
            narrow = min(width, step)
            narrow = narrow if width // narrow <= FEW_VECTORS else width
            yield narrow, step % narrow == 0
        return
    while total > 0:
        while width > 1 and width // 2 >= total:
            width //= 2
        chunks = max(1, min(chunks, total // width))
        yield chunks * width, total >= width
        total = total % (chunks * width) if total >= width else 0


def _window_parts(
    code: CodeModel, kernel: KernelModel, body: Body, dynamic: DynamicLoops, *, is_bordered: bool
) -> dict[str, int]:
    sums = body.rows * max(1, body.columns // kernel.lanes)
    is_long = code.dear > 0 or code.cheap >= _LONG_WINDOW
    return {
        "body": 1,
        "tap": sums * code.taps,
        "bordered body": is_bordered,
        "guarded tap": body.rows * code.taps if is_bordered else 0,
        "free tap": sums * code.taps if is_bordered and body.is_common else 0,
        "guarded sum": 0 if body.has_all_rows else sums,
        "masked sum": 0 if body.has_all_columns else sums,
        "dynamic row": body.rows + code.taps if dynamic.columns else 0,
        **_epilogue(code, sums, is_long=is_long),
    }
