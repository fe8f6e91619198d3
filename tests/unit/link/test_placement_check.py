"""What is placed wrongly in a program is found, whatever instruction names it: programs that are
emitted, changed by one element or one word, and judged again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aot
from aot.builder import Builder
from aot.errors import InternalError, ProofWarning
from aot.frontends.text import import_text
from aot.ir import dims
from aot.ir.dim_parser import parse
from aot.ir.dims import Dim
from aot.ir.graph import Function, Module
from aot.link import emit_program as emitter
from aot.link.flow import Entry
from aot.link.image import EntryPointImage, ProgramImage
from aot.link.nonnegative import Assumptions, is_nonnegative
from aot.link.placement_check import TOUCHED, Claims, check_placement
from aot.link.program import Instruction, decode, encode, encode_constant
from aot.link.program_steps import Steps
from aot.link.rodata import RodataPool
from tests.support.control_lowering import compiled
from tests.support.control_sources import SUM

REFUSED = InternalError, ProofWarning
pytestmark = pytest.mark.filterwarnings("error::aot.errors.ProofWarning")


@dataclass(frozen=True)
class Judged:
    """What a program is judged by, and how many pieces were left to the runtime."""

    entry: EntryPointImage
    function: Function
    executables: dict[str, Entry]
    rodata: RodataPool
    claims: Claims
    left: int

    def judge(self, program: ProgramImage | None = None, **claims: Any) -> int:
        entry = self.entry if program is None else replace(self.entry, program=program)
        given = replace(self.claims, **claims)
        return check_placement(entry, self.function, self.executables, self.rodata, given)

    @property
    def program(self) -> ProgramImage:
        return self.entry.program

    def steps(self, *names: str) -> Iterator[Instruction]:
        return (step for step in decode(self.program.code) if step.name in names)


def judged(build: Callable[[], object]) -> Judged:
    """The program that a compile makes, and what judged it."""
    found: list[Judged] = []

    def judge(*given: Any) -> int:
        entry, function, executables, rodata, claims = given
        left = check_placement(*given)
        found.append(Judged(entry, function, executables, rodata, claims, left))
        return found[-1].left

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emitter, "check_placement", judge)
        build()
    return found[0]


# ---- programs ----


def chain(batch: int | str) -> Module:
    """Matrix products and softmaxes one after the other, each of which is a buffer of its own."""
    b = Builder()
    value = b.input("x", f"f32[{batch}, 24]")
    for seed in range(3):
        w = np.random.default_rng(seed).standard_normal((24, 24)).astype(np.float32)
        value = b.op("softmax", b.op("matmul", value, b.constant(w)), axis=1)
    b.output("y", value)
    return b.module()


LOOP = """
func @main(%x: f32[N, 4], %n: i64[]) -> ("last", "rows") {
  %last, %rows = loop(%n, _, %x) {trips = 5} : f32[N, 4], f32[5, N, 4]
      ^(%i: i64[], %v: f32[N, 4]) {
    %w = exp(%v) : f32[N, 4]
    %k = constant {value = bool[] <true>} : bool[]
    yield(%k, %w, %w)
  }
  return(%last, %rows)
}
"""

COUNTED = """
func @main(%x: i64[9]) -> ("y") assume [
  min(n, 9) == n "n: its limit",
] {
  %k = reduce_max(%x) {axes = [0], keepdims = false} : i64[]
  extent(%k) {dim = n} @"how many"
  %e = scan(%x) {axis = 0} : i64[9]
  %s = slice(%e) {starts = [0], stops = [n], steps = [1]} : i64[n]
  %y = abs(%s) : i64[n]
  return(%y)
}
"""


def of_chain(batch: int | str) -> Judged:
    return judged(lambda: aot.compile(chain(batch), targets=["x86-64-v2"]))


def of_text(source: str) -> Judged:
    """Each op a dispatch of its own."""
    return judged(lambda: compiled(source))


def of_model(source: str) -> Judged:
    return judged(lambda: aot.compile(import_text(source), targets=["x86-64-v2"]))


PROGRAMS: dict[str, Callable[[], Judged]] = {
    "static": lambda: of_chain(3),
    "open": lambda: of_chain("N"),
    "loop": lambda: of_text(LOOP),
    "state": lambda: of_text(SUM),
    "counted": lambda: of_model(COUNTED),
}


def changed(program: ProgramImage, step: Instruction, operand: int, by: int) -> ProgramImage:
    """The program in which a register operand of an instruction is `by` more."""
    code, count = list(program.code), program.register_count
    register = step.operands[operand]
    added = [*encode_constant(count, by), *encode("ADD", count + 1, register, count)]
    code[step.at + 1 + operand] = count + 1
    at = step.at
    before = [i for i in decode(program.code) if i.at < at]
    if before and before[-1].name == "BESIDE":
        at = before[-1].at
    code[at:at] = added
    blocks = tuple(b + len(added) if b > at else b for b in program.blocks)
    return replace(program, code=tuple(code), blocks=blocks, register_count=count + 2)


@pytest.fixture(params=PROGRAMS, scope="module")
def made(request: pytest.FixtureRequest) -> Judged:
    return PROGRAMS[request.param]()


def test_all_is_decided(made: Judged) -> None:
    assert made.judge() == made.left == 0


@pytest.mark.parametrize("by", [-4, 1, 4])
def test_a_dispatch_at_another_place(made: Judged, by: int) -> None:
    """Each operand of each dispatch: values here are all of their buffers, or may be."""
    dispatches = list(made.steps("DISPATCH"))
    assert dispatches
    for number, step in enumerate(dispatches):
        op = [o for o in made.function.walk() if o.name == "dispatch"][number]
        values = [*(v for v in op.operands if v is not None), *op.results]
        for place, value in enumerate(values):
            what = rf"word {step.at + 8}: DISPATCH of .*{re.escape(str(value.type))}"
            with pytest.raises(REFUSED, match=what):
                made.judge(changed(made.program, step, 4 + place, by))


def test_a_dispatch_of_another_size(made: Judged) -> None:
    """Its grid, and the extents that it gives."""
    for step in made.steps("DISPATCH"):
        for operand in (1, 2, 3):
            with pytest.raises(REFUSED, match=r"in its grid or dims, expected"):
                made.judge(changed(made.program, step, operand, 1))
    if not any(entry.dim_names for entry in made.executables.values()):
        return
    for step in made.steps("DISPATCH"):
        entry = next(e for e in made.executables.values() if e.number == step.operands[0])
        for place in range(len(entry.dim_names)):
            with pytest.raises(REFUSED, match=r"in its grid or dims, expected"):
                made.judge(changed(made.program, step, len(step.operands) - 1 - place, 1))


def test_what_the_program_itself_touches(made: Judged) -> None:
    """It is found, or left to the runtime: rows of a loop may be that far apart."""
    for step in made.steps(*TOUCHED):
        for _, offset, size in TOUCHED[step.name]:
            for operand, by in [(offset, 4096), *([(size, 1)] if size > 0 else [])]:
                try:
                    assert made.judge(changed(made.program, step, operand, by)) > made.left
                except InternalError as error:
                    assert re.search(rf"{step.name}: .* bytes at offset .* not in", str(error))


def without(program: ProgramImage, step: Instruction) -> ProgramImage:
    """The program with NOPs in the place of an instruction."""
    code = list(program.code)
    length = 1 + len(step.operands)
    code[step.at : step.at + length] = [*encode("NOP")] * length
    return replace(program, code=tuple(code))


def test_checks_that_sizes_rest_on_are_there() -> None:
    made = of_model(COUNTED)
    checks = list(made.steps("CHECK"))
    assert len(checks) == 2  # that it is not negative, and not more than 9
    for step in checks[1:]:
        with pytest.raises(REFUSED, match="not in"):
            made.judge(without(made.program, step))


def test_extents_that_inputs_share_are_checked() -> None:
    b = Builder()
    x, y = b.input("x", "f32[N, 4]"), b.input("y", "f32[N, 4]")
    b.output("z", b.op("add", x, y))
    made = judged(lambda: aot.compile(b.module(), targets=["x86-64-v2"]))
    (check,) = made.steps("CHECK")
    with pytest.raises(REFUSED, match="axis 0 of input 'y' is never checked to be N"):
        made.judge(without(made.program, check))


def test_the_arena_has_all_that_lies_in_it() -> None:
    made = of_chain(3)
    assert made.program.arena_bytes > 0
    with pytest.raises(REFUSED, match="is not in the .* bytes that the arena has for it"):
        made.judge(replace(made.program, arena_bytes=made.program.arena_bytes - 4))


def test_buffers_of_one_moment_share_nothing() -> None:
    made = of_chain(3)
    first, second, *others = made.claims.regions
    meeting = replace(second, offset=first.offset, first=first.first, last=first.last)
    with pytest.raises(REFUSED, match="share bytes at position"):
        made.judge(regions=[first, meeting, *others])


def test_a_buffer_is_used_while_it_lives() -> None:
    made = of_chain("N")
    for number, buffer in enumerate(made.program.buffers):
        buffers = list(made.program.buffers)
        buffers[number] = replace(buffer, last=buffer.last - 1)
        with pytest.raises(REFUSED, match="are not in any buffer of the arena class there"):
            made.judge(replace(made.program, buffers=tuple(buffers)))


def test_buffers_that_are_too_small_for_open_extents() -> None:
    """`BUFFER` with a byte less than its value takes."""
    made = of_chain("N")
    for step in made.steps("BUFFER"):
        with pytest.raises(REFUSED, match=r"are not in arena buffer \d of"):
            made.judge(changed(made.program, step, 1, -1))


def test_scratch_that_is_not_set_aside() -> None:
    made = of_chain(3)
    name = next(iter(made.executables))
    entries = {**made.executables, name: replace(made.executables[name], scratch_bytes=1 << 20)}
    with pytest.raises(REFUSED, match="has 1048576 bytes of scratch at"):
        replace(made, executables=entries).judge()


def test_the_message() -> None:
    made = of_chain(3)
    step = next(made.steps("DISPATCH"))
    with pytest.raises(REFUSED) as caught:
        made.judge(changed(made.program, step, 4, 4))
    assert str(caught.value) == (
        f"word {step.at + 8}: DISPATCH of e0, <value x: f32[3, 24]>: 288 bytes at offset "
        "@input 0 + 4, in steps of 4, are not in input 0 of 288 bytes at @input 0"
    )


def test_a_slice_that_no_limit_keeps_inside_is_checked_in_a_run() -> None:
    """A value says how long a part is, and may say more than there is."""
    loose = COUNTED.replace("min(n, 9)", "min(n, 400)")
    assert len(list(of_model(loose).steps("CHECK"))) == 3
    with aot.load(aot.compile(import_text(loose), targets=["host"])) as program:
        wanted = np.arange(9, dtype=np.int64)
        np.testing.assert_array_equal(program(x=wanted)["y"], np.cumsum(wanted)[:8])
        with pytest.raises(
            aot.RuntimeFailure, match=r"axis 0 of its input is too short, expected n <= 9; n is 10"
        ):
            program(x=wanted + 2)


@pytest.mark.parametrize(
    ("starts", "stops", "least"), [("[1, 0]", "[2, 4]", 2), ("[N - 3, 0]", "[N - 2, 4]", 3)]
)
def test_a_row_of_an_open_extent_is_there_or_an_error(starts: str, stops: str, least: int) -> None:
    text = f"""func @main(%x: f32[N, 4]) -> ("y") {{
  %0 = slice(%x) {{starts = {starts}, stops = {stops}, steps = [1, 1]}} : f32[1, 4]
  %y = relu(%0) : f32[1, 4]
  return(%y)
}}
"""
    with aot.load(aot.compile(import_text(text), targets=["host"])) as program:
        for rows in range(5):
            x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
            if rows < least:
                with pytest.raises(aot.RuntimeFailure, match="axis 0 of its input is too short"):
                    program(x=x)
            else:
                row = 1 if starts[1] == "1" else rows - 3
                np.testing.assert_array_equal(program(x=x)["y"], x[row : row + 1])


def test_compiles_are_judged() -> None:
    """Always, whatever the options."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steps, "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            aot.compile(chain(2), targets=["x86-64-v2"], optimize="size")


# ---- proofs ----

N, M, K = (dims.symbol(name) for name in "NMK")


@pytest.mark.parametrize(
    ("dim", "facts", "wanted"),
    [
        (4 * N * M, (), True),
        (N - 1, (), False),
        (N - 1, (N - 3,), True),
        (9 - N, (9 - N,), True),
        (4 * M * K - 4 * N * K, (M - N,), True),
        (4 * M * K - 4 * N * K - 1, (M - N,), False),
        (8 * M * K - 8 * N * K - 8 * K, (M - N - 1,), True),
        (72 - 8 * N, (dims.minimum(N, 9) - N,), True),
        (dims.maximum(N - 3, M) - M, (), True),
        (N - 2 * (N // 2), (), True),
        (M // 2 - N // 2, (M - N,), True),
        (M // 2 - N // 2, (), False),
        (N + 1 - dims.maximum(N - 1, 0), (), True),
        (N - dims.maximum(N, 1), (), False),
        (dims.minimum(M, N) - dims.minimum(N, K), (dims.minimum(M, K) - K,), True),
        (dims.minimum(M, N) - dims.minimum(N, K), (), False),
        (N - 1, (dims.maximum(N - dims.maximum(N - 1, 0), 0) - 1,), True),
        (N - 2, (dims.maximum(N - dims.maximum(N - 1, 0), 0) - 1,), False),
    ],
)
def test_proofs(dim: Dim, facts: tuple[Dim, ...], wanted: bool) -> None:
    assert is_nonnegative(dim, Assumptions(facts, {})) is wanted


def test_what_limits_is_a_fact_of_its_own() -> None:
    """Among others: a limit times what is not negative, and the limit again for the rest."""
    texts = (
        "min(64*max(T, 1), n) - n",
        "2*T - 1",
        "max(min((max(2*T - 1, 0) + 63)//64, 128), 1) - 1",
        "max(min((T + 63)//64, 128), 1) - 1",
    )
    facts = [parse(text) for text in texts]
    room = parse("256*T*max(T, 1) + 256*max(T, 1) - 4*T*n - 4*n")
    assert is_nonnegative(room, Assumptions(facts, {"T": (1, None), "n": (0, None)}))


@st.composite
def some_dims(draw: st.DrawFn) -> Dim:
    total: Dim = draw(st.integers(-4, 4))
    for _ in range(draw(st.integers(1, 3))):
        a, b = (draw(st.sampled_from([1, N, M, K, N - M, K + 2])) for _ in range(2))
        kind = draw(st.sampled_from([dims.multiply, dims.maximum, dims.minimum, None]))
        term = dims.floor_divide(a, 2) if kind is None else kind(a, b)
        total = dims.add(total, dims.multiply(term, draw(st.integers(-3, 3))))
    return total


@given(some_dims(), st.lists(some_dims(), max_size=2))
def test_what_is_proved_holds(dim: Dim, facts: list[Dim]) -> None:
    if not is_nonnegative(dim, Assumptions(facts, {})):
        return
    for n, m, k in np.ndindex(5, 5, 5):
        values = {"N": n, "M": m, "K": k}
        if all(dims.evaluate(fact, values) >= 0 for fact in facts):
            assert dims.evaluate(dim, values) >= 0
