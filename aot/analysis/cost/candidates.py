"""The candidate schedules of an executable on a target: the plan's own, then others by estimated
cost.

A choice is a tile for each stage, and for a convolution that has two ways to be computed, which of
them. What the plan would admit is decided here and nowhere else, whether a choice was measured or
comes out of a file. Changes nothing and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from aot.analysis.cost import winograd
from aot.analysis.cost.gpu_tiles import gpu_columns, gpu_sums
from aot.analysis.cost.plan import Plan, wide_extents
from aot.analysis.cost.tile_costs import KernelModel, Tile, cost, is_window, loops_of
from aot.analysis.dispatches import dispatches_of
from aot.analysis.stages import DIRECT, heaviest, planned, plans_of, schedule_of, stages_of
from aot.base.records import dataclass
from aot.ir.clone import clone_function
from aot.ir.dims import Dim, DimExpr
from aot.ir.graph import Function, Module, Op
from aot.ir.record import call_of, contraction_of
from aot.ir.schedule import Schedule, StageSchedule
from aot.target.model import Target

WINOGRAD = "winograd"

# the most rows of a register tile: beyond them what is loaded no longer counts
MOST_ROWS = 16
WINDOW_ROWS, WINDOW_VECTORS = range(2, 9), (1, 2, 4)


@dataclass(frozen=True)
class Choice:
    """A candidate schedule of an executable.

    Attributes:
        tiles: rows and columns, by stage.
        algorithm: of the convolution at the heart; "" where there is no choice.
    """

    tiles: tuple[Tile, ...]
    algorithm: str = ""

    def __str__(self) -> str:
        tiles = " ".join(f"{rows}x{columns}" for rows, columns in self.tiles)
        return f"{self.algorithm} {tiles}".strip()


@dataclass(frozen=True, eq=False)
class Run:
    """Dispatches of an executable with the same dim arguments.

    Attributes:
        op: the first of them.
        values: of the parameters, over the symbols of the model.
        count: how many there are.
    """

    op: Op
    values: Mapping[str, Dim]
    count: int


def runs_of(module: Module) -> dict[str, list[Run]]:
    """The dispatches of each executable, in order."""
    found: dict[str, dict[tuple[Dim, ...], list[Op]]] = {}
    for op, name in dispatches_of(module):
        found.setdefault(name, {}).setdefault(_dims_of(op), []).append(op)
    return {
        name: [
            Run(ops[0], dict(zip(module.functions[name].dim_names, dims, strict=True)), len(ops))
            for dims, ops in groups.items()
        ]
        for name, groups in found.items()
    }


def _dims_of(op: Op) -> tuple[Dim, ...]:
    given = op.attrs.get("dims", ())
    assert isinstance(given, tuple)
    return tuple(dim for dim in given if isinstance(dim, (int, DimExpr)))


def choice_of(function: Function, target: Target) -> Choice:
    """The candidate that an executable's current schedule represents."""
    stages = schedule_of(function, target)
    way = WINOGRAD if stages[0].schedule is Schedule.WINOGRAD else DIRECT
    return Choice(_tiles_of(stages), way if _has_two_ways(function, target) else "")


def schedule_with(function: Function, choice: Choice, target: Target) -> tuple[StageSchedule, ...]:
    """The schedule of an executable for `choice`, which the executable must admit."""
    stages = schedule_of(function, target)
    if choice.algorithm != choice_of(function, target).algorithm:
        stages = planned(function, target, choice.algorithm)
    return _with_tiles(stages, choice.tiles)


def _tiles_of(stages: Sequence[StageSchedule]) -> tuple[Tile, ...]:
    return tuple((stage.rows, stage.columns) for stage in stages)


def _with_tiles(
    stages: Sequence[StageSchedule], tiles: Sequence[Tile]
) -> tuple[StageSchedule, ...]:
    """`stages` with other tiles, stage by stage."""
    return tuple(
        stage
        if tile == (stage.rows, stage.columns)
        else replace(stage, rows=tile[0], columns=tile[1], shares=1, staged=0)
        for stage, tile in zip(stages, tiles, strict=True)
    )


def modelled_cost(function: Function, runs: Sequence[Run], target: Target) -> float:
    """The estimated cost of all dispatches of an executable, in vector operations."""
    return sum(_stage_costs(function, runs, target))


def candidates(
    function: Function, runs: Sequence[Run], target: Target, *, has_winograd: bool
) -> list[Choice]:
    """All candidates that an executable admits: its current one first, then the others by cost.

    These are in the order of what the model says they cost, the best of each width and of each
    algorithm first: a model errs in what it knows of a machine, and then for all tiles alike.
    """
    own = choice_of(function, target)
    found = [own]
    trial = clone_function(function)
    ways = [own.algorithm]
    if has_winograd and own.algorithm:
        ways.append(WINOGRAD if own.algorithm == DIRECT else DIRECT)
    groups: dict[tuple[str, int], list[tuple[float, Choice]]] = {}
    for way in ways:
        fresh = trial.schedule = planned(function, target, way)
        base = own.tiles if way == own.algorithm else _tiles_of(fresh)
        costs = _stage_costs(function if way == own.algorithm else trial, runs, target)
        varied = max(range(len(base)), key=costs.__getitem__)
        for tile in _tiles(trial, varied, target):
            choice = Choice((*base[:varied], tile, *base[varied + 1 :]), way)
            trial.schedule = _with_tiles(fresh, choice.tiles)
            total = modelled_cost(trial, runs, target)
            trial.schedule = fresh
            if choice != own:
                groups.setdefault((way, tile[1]), []).append((total, choice))
    ordered = sorted((sorted(g, key=_by_cost) for g in groups.values()), key=lambda g: g[0][0])
    for row in zip_longest(*ordered):
        found += [choice for _, choice in sorted(filter(None, row), key=_by_cost)]
    return found


def admits(function: Function, choice: Choice, target: Target, *, has_winograd: bool) -> bool:
    """Whether an executable can run as `choice` says; `choice` may be untrusted."""
    own = choice_of(function, target)
    if choice == own:
        return True
    if bool(choice.algorithm) != bool(own.algorithm) or len(choice.tiles) != len(own.tiles):
        return False
    if choice.algorithm not in (own.algorithm, DIRECT, *([WINOGRAD] if has_winograd else [])):
        return False
    trial = clone_function(function)
    if choice.algorithm != own.algorithm:
        trial.schedule = planned(function, target, choice.algorithm)
    now = choice_of(trial, target).tiles
    return all(
        tile == now[stage] or tile in _tiles(trial, stage, target)
        for stage, tile in enumerate(choice.tiles)
    )


def _by_cost(item: tuple[float, Choice]) -> tuple[float, tuple[Tile, ...]]:
    return item[0], item[1].tiles


def _has_two_ways(function: Function, target: Target) -> bool:
    """Whether an executable is a convolution that Winograd's algorithm could compute."""
    stages = stages_of(function.block, function.results)
    op = heaviest(stages[0].ops)
    return len(stages) == 1 and winograd.fits(call_of(op), target)


def _stage_costs(function: Function, runs: Sequence[Run], target: Target) -> list[float]:
    totals_: list[float] = []
    stages = stages_of(function.block, function.results)
    for stage, made in zip(stages, plans_of(function, target), strict=True):
        call = call_of(heaviest(stage.ops))
        kernel, tile = KernelModel.of(made, target, call), (made.rows, made.columns)
        total = 0.0
        for run in runs:
            loops, dynamic = loops_of(call, made, run.values)
            total += run.count * cost(kernel, loops, tile, dynamic)
        totals_.append(total)
    return totals_


# ---- which tiles there are ----


def _tiles(function: Function, stage: int, target: Target) -> list[Tile]:
    """The candidate tiles of a stage; empty where its schedule has no choice."""
    made = plans_of(function, target)[stage]
    op = heaviest(stages_of(function.block, function.results)[stage].ops)
    if op.record.kind.has_handwritten_kernel:
        return []
    if made.schedule is Schedule.WINOGRAD:
        return list(winograd.register_tiles(target.panel, made.lanes, target.vector_registers))
    contraction = contraction_of(op)
    if contraction is not None and contraction.right.scales is not None:
        return []
    if made.schedule in (Schedule.CONTRACTION, Schedule.PLANES) and contraction is not None:
        rows, columns = contraction.tile_extents
        if made.schedule is Schedule.PLANES:
            rows, columns = columns, rows
        tiles = _workgroup_tiles if target.has_workgroups else _register_tiles
        return list(tiles(made, target, rows, columns))
    if is_window(made) and not target.has_workgroups:
        wide = wide_extents(call_of(op))
        return list(_window_tiles(made, target, wide[-2] if len(wide) > 1 else 1))
    return []


def _register_tiles(made: Plan, target: Target, rows: Dim, columns: Dim) -> Iterator[Tile]:
    """Candidate register tiles of a product, (rows, columns), whose sums fit the registers beside a
    row of vectors and a scalar.
    """
    for width in (target.panel // 2, *(n * target.panel for n in (1, 2, 3, 4))):
        vectors = width // made.lanes
        if vectors == 0 or width % made.lanes:
            continue
        if isinstance(columns, int) and width >= columns + target.panel:
            continue
        for height in range(1, MOST_ROWS + 1):
            if height * vectors + vectors + 1 > target.vector_registers:
                break
            if isinstance(rows, int) and height > rows:
                break
            yield height, width


def _window_tiles(made: Plan, target: Target, rows: Dim) -> Iterator[Tile]:
    for height in WINDOW_ROWS:
        for vectors in WINDOW_VECTORS:
            fits = height * vectors <= max(target.vector_registers // 2, 4)
            if fits and not (isinstance(rows, int) and height > rows):
                yield height, vectors * made.lanes


def _workgroup_tiles(made: Plan, target: Target, rows: Dim, columns: Dim) -> Iterator[Tile]:
    """Candidate workgroup tiles of a product, (rows, columns): lanes in any rectangle, with a few
    rows and columns each."""
    own = gpu_columns(target)
    most = max(1, gpu_sums(target) // own)
    each_rows = [n for n in (1, 2, 4, 8) if n <= most]
    across = 1
    while across <= made.lanes:
        along = made.lanes // across
        too_wide = isinstance(columns, int) and across > 1 and across * own >= 2 * columns
        for each in each_rows:
            too_high = isinstance(rows, int) and along * each >= 2 * rows and along * each > 1
            if not too_wide and not too_high:
                yield along * each, across * own
        across *= 2
