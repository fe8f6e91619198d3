"""An executable's schedule is decided once, where it is outlined, and obeyed by its kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.analysis.cost.candidates import Choice, choice_of, schedule_with
from aot.analysis.stages import planned, schedule_of
from aot.errors import CompileError
from aot.ir.clone import clone_function
from aot.ir.graph import Function
from aot.ir.schedule import Schedule, StageSchedule
from aot.ir.text.parser import parse_module
from aot.ir.text.printer import print_function
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower
from aot.passes.fusion.outline import record_schedule
from aot.target import selection as targets

MACHINE = targets.load("x86-64-v3")
GPU = targets.load("vulkan-1.1")

CONV = """
executable @e0(
  %0: f32[1, 16, 24, 24]{order=0:2:3:1}, %1: f32[32, 16, 3, 3]{splits=0/16 order=0:2:3:1:4}
) -> ("r0") bindings [2, 0, 3] {
  %2 = conv(%0, %1) {
    strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]ALGORITHM
  } : f32[1, 32, 24, 24]{order=0:2:3:1}
  return(%2)
}
"""
STAGES = """
executable @e0(%0: f32[4, 32], %1: f32[32, 32]) -> ("r0", "r1") bindings [2, 0, 3, 3] {
  %2 = matmul(%0, %1) : f32[4, 32]
  %3 = relu(%2) : f32[4, 32]
  return(%2, %3)
}
"""


def executable(text: str) -> Function:
    (function,) = parse_module(text).executables
    return function


def conv(algorithm: str = "direct") -> Function:
    return executable(CONV.replace("ALGORITHM", f', algorithm = "{algorithm}"'))


def kernel(function: Function) -> str:
    return to_text(lower(function, MACHINE))


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_a_recorded_schedule_is_the_plans_and_says_the_algorithm(algorithm: str) -> None:
    function = conv(algorithm)
    before = kernel(function)
    record_schedule(function, MACHINE)
    (stage,) = function.schedule
    assert (stage.schedule is Schedule.WINOGRAD) == (algorithm == "winograd")
    assert "algorithm" not in print_function(function)
    assert kernel(function) == before
    recorded = function.schedule
    record_schedule(function, GPU)
    assert function.schedule == recorded


def test_stages_have_a_schedule_each() -> None:
    function = executable(STAGES)
    record_schedule(function, MACHINE)
    assert [s.schedule for s in function.schedule] == [Schedule.CONTRACTION, Schedule.ELEMENTWISE]
    assert schedule_of(function, MACHINE) == function.schedule


@pytest.mark.parametrize("tile", [(1, 16), (2, 32), (3, 8)])
def test_a_kernel_obeys_the_tile(tile: tuple[int, int]) -> None:
    function = conv()
    own = kernel(function)
    record_schedule(function, MACHINE)
    (stage,) = function.schedule
    function.schedule = (replace(stage, rows=tile[0], columns=tile[1]),)
    assert kernel(function) != own


def test_a_kernel_obeys_the_algorithm() -> None:
    direct, other = kernel(conv("direct")), kernel(conv("winograd"))
    assert direct != other
    function = conv("direct")
    own = choice_of(function, MACHINE)
    assert own.algorithm == "direct"
    wanted = choice_of(conv("winograd"), MACHINE)
    function.schedule = schedule_with(function, wanted, MACHINE)
    assert (choice_of(function, MACHINE), kernel(function)) == (wanted, other)
    function.schedule = schedule_with(function, own, MACHINE)
    assert (choice_of(function, MACHINE), kernel(function)) == (own, direct)
    assert clone_function(function).schedule == function.schedule
    function.schedule = schedule_with(function, Choice(((2, 16),), "direct"), MACHINE)
    assert function.schedule == (StageSchedule(Schedule.CONTRACTION, 8, 2, 16),)


@pytest.mark.parametrize(
    ("text", "schedule", "message"),
    [
        (
            STAGES,
            [StageSchedule(Schedule.LINES, 8), StageSchedule(Schedule.ELEMENTWISE, 8)],
            "executable e0: matmul can't run by the schedule [lines lanes=8] on x86-64-v3, "
            "expected contraction lanes=8",
        ),
        (
            STAGES,
            [StageSchedule(Schedule.CONTRACTION, 8, 4, 16), StageSchedule(Schedule.WINOGRAD, 8)],
            "executable e0: relu can't run by the schedule [winograd lanes=8] on x86-64-v3, "
            "expected elementwise lanes=8",
        ),
        (
            CONV.replace("ALGORITHM", ""),
            [StageSchedule(Schedule.WINOGRAD, 64, 2, 16)],
            "executable e0: conv can't run by the schedule [winograd lanes=64 tile=2:16] on "
            "x86-64-v3, expected contraction lanes=8 or winograd lanes=8",
        ),
    ],
)
def test_a_schedule_that_an_op_has_not_is_refused(
    text: str, schedule: list[StageSchedule], message: str
) -> None:
    function = executable(text)
    function.schedule = tuple(schedule)
    with pytest.raises(CompileError) as caught:
        lower(function, MACHINE)
    assert str(caught.value) == message


def test_a_schedule_of_another_target_is_refused() -> None:
    function = executable(STAGES)
    function.schedule = planned(function, GPU)
    with pytest.raises(CompileError, match=r"^executable e0: matmul can't run by the schedule "):
        lower(function, MACHINE)
