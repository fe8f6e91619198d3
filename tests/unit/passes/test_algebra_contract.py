"""The contract of docs/internals/algebra.md: no rule that may change a value does so before a
discontinuity, and what rules change stays within their bounds, at the ends of ranges as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import aot
from aot.analysis.discontinuities import Discontinuities
from aot.builder import Builder
from aot.frontends.text import import_text
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.record import REGISTRY, Kind
from aot.ir.rewriter import Rewriter
from aot.ir.types import DType
from aot.ops.arg import ARG_MAX
from aot.ops.elementwise import CAST, DIV, FLOOR, LESS, SQRT
from aot.ops.quantization import QUANTIZE
from aot.ops.reduction import REDUCE_SUM
from aot.passes.base import PassContext, run_passes
from aot.passes.simplify import algebra, canonicalize
from aot.passes.simplify.bounds import EXACT, Change
from aot.passes.simplify.dce import DCE
from aot.passes.simplify.fold_constants import FOLD_CONSTANTS
from aot.passes.simplify.rewriting import Rule, RuleSet
from tests.support.golden import Case, cases
from tests.support.graphs import random_inputs

F32 = np.float32
ASKING = [r for r in algebra.RULES if r.bound.change not in (Change.EXACT, Change.REORDERS)]


def _floor(b: Rewriter, x: Value) -> Op:
    return b.create(FLOOR, [x], {}, "jump")


def _cast(b: Rewriter, x: Value) -> Op:
    return b.create(CAST, [x], {"to": DType.I32}, "jump")


def _comparison(b: Rewriter, x: Value) -> Op:
    return b.create(LESS, [x, x], {}, "jump")


def _position(b: Rewriter, x: Value) -> Op:
    return b.create(ARG_MAX, [x], {"axis": 0, "keepdims": True, "dtype": DType.I64}, "jump")


def _root(b: Rewriter, x: Value) -> Op:
    return b.create(SQRT, [x], {}, "jump")


def _divisor(b: Rewriter, x: Value) -> Op:
    return b.create(DIV, [x, x], {}, "jump")


def _bytes(b: Rewriter, x: Value) -> Op:
    return b.create(QUANTIZE, [x], {"to": DType.U8}, "jump")


def _sum_and_floor(b: Rewriter, x: Value) -> Op:
    total = b.create(REDUCE_SUM, [x], {"axes": (0,)}, "jump")
    return b.create(FLOOR, total.results, {}, "jump")


NEAR = {f.__name__: f for f in (_floor, _cast, _comparison, _position, _root, _divisor)}
FAR = {f.__name__: f for f in (_bytes, _sum_and_floor)}


def sees(op: Op, function: Function, rule: Rule, jump: Callable[[Rewriter, Value], Op]) -> bool:
    """Whether the rule leaves `op` as it is while a discontinuity is behind it."""
    following = op.next
    assert following is not None
    made = jump(Rewriter(function).at(following), op.result)
    fresh = RuleSet("one", [rule])._apply(op, function, None, Discontinuities(function))
    while following.prev is not op:
        assert following.prev is not None and following.prev.origin == "jump"
        Rewriter(function).erase(following.prev)
    del made
    return fresh is None


@pytest.mark.parametrize("number", range(len(ASKING)), ids=lambda n: str(ASKING[n].equation))
def test_no_rule_changes_what_a_discontinuity_sees(number: int) -> None:
    """At each place of the golden cases where the rule applies."""
    rule = ASKING[number]
    jumps = NEAR if rule.bound.change is not Change.ROUNDS else {**NEAR, **FAR}
    places = 0

    def rewrite(op: Op, rewriter: Rewriter) -> Value | None:
        nonlocal places
        function, before = rewriter.function, op.prev
        fresh = rule.rewrite(op, rewriter)
        if fresh is None:
            return None
        while op.prev is not before:
            assert op.prev is not None
            Rewriter(function).erase(op.prev)
        for name, jump in jumps.items():
            assert sees(op, function, rule, jump), (op, name)
        places += 1
        return rule.rewrite(op, Rewriter(function).at(op))

    rules = [dataclasses.replace(r, rewrite=rewrite) if r is rule else r for r in algebra.RULES]
    for path in cases("passes/algebra"):
        module = import_text(Case.read(path).before)
        run_passes(module, [canonicalize.CANONICALIZE], PassContext())
        RuleSet("algebra", rules).apply(module.main)
    assert places


def test_every_rule_that_asks_says_by_how_much() -> None:
    for rule in algebra.RULES:
        is_free = rule.bound.change in (Change.EXACT, Change.REORDERS)
        assert (rule.bound.roundings == 0) is (is_free or "x + 0" in rule.equation), rule.equation
    assert all(rule.bound is EXACT for rule in canonicalize.RULES)


# what a discontinuity is


def test_what_jumps_is_declared() -> None:
    """Ops of floats that give floats change little where an operand changes by its last bit, at
    halves and whole numbers, unless their record says that they jump."""
    halves = (np.arange(-8, 9) / 2).astype(F32)
    for record in REGISTRY.values():
        plain = [s for s in record.samples if all(t is not None for t in s.operands)]
        if record.kind is not Kind.ELEMENTWISE or record.reference is None or not plain:
            continue
        types = [t for t in plain[0].operands if t is not None]
        results = record.call(types, plain[0].attrs).result_types
        if any(t.dtype is not DType.F32 for t in (*types, *results)):
            continue
        for at in range(len(types)):
            grid = np.array(list(product(halves, repeat=len(types))), F32).T
            made = [dataclasses.replace(t, dims=(grid.shape[1],)) for t in types]
            call = record.call(made, plain[0].attrs)
            near = [
                np.nextafter(row, F32(np.inf)) if n == at else row for n, row in enumerate(grid)
            ]
            with np.errstate(all="ignore"):
                (a,), (b,) = (record.reference(call, list(rows)) for rows in (grid, near))
            both = np.isfinite(a) & np.isfinite(b)
            is_jumping = bool((np.abs(a[both] - b[both]) > 1e-3).any())
            assert is_jumping <= (at in record.jumps or at in record.edges), (record.name, at)
            is_ending = bool((np.isfinite(a) != np.isfinite(b)).any())
            assert is_ending <= (at in record.edges or at in record.jumps), (record.name, at)


def found_in(text: str) -> tuple[set[str], set[str]]:
    """Names of the values near a discontinuity, and of those with one anywhere behind."""
    function: Function = import_text(text).main
    facts = Discontinuities(function)
    values = [*function.inputs, *(v for op in function.walk() for v in op.results)]
    near = {v.name for v in values if facts.are_near(v)}
    return near, {v.name for v in values if facts.are_behind(v)}


def test_sums_and_functions_end_what_is_near() -> None:
    near, behind = found_in(
        """
func @main(%x: f32[2, 2], %w: f32[2, 2], %u: f32[2, 2]) -> ("y", "z") {
  %a = matmul(%x, %w) : f32[2, 2]
  %b = neg(%a) : f32[2, 2]
  %c = floor(%b) : f32[2, 2]
  %d = exp(%u) : f32[2, 2]
  return(%c, %d)
}
"""
    )
    assert near == {"a", "b"}
    assert behind == {"x", "w", "a", "b"}


def test_quantising_is_behind_and_not_near() -> None:
    near, behind = found_in(
        """
func @main(%x: f32[4], %y: f32[4]) -> ("y", "s") {
  %none = constant {value = f32[] <0.0>} : f32[]
  %low = reduce_min(%x) {axes = [0], keepdims = false} : f32[]
  %high = reduce_max(%x) {axes = [0], keepdims = false} : f32[]
  %scale = sub(%high, %low) : f32[]
  %start = div(%low, %scale) : f32[]
  %whole = round(%start) : f32[]
  %zero = cast(%whole) {to = u8} : u8[]
  %q = quantize(%x, %scale, %zero) {to = u8} : u8[4]
  %s = div(%y, %scale) : f32[4]
  return(%q, %s)
}
"""
    )
    assert near == set()
    assert behind == {"x", "low", "high", "scale", "start", "whole"}


def test_control_flow_is_looked_through() -> None:
    near, behind = found_in(
        """
func @main(%x: f32[2], %c: bool[], %n: i64[]) -> ("y", "z") {
  %a = neg(%x) : f32[2]
  %y = if(%c) : f32[2] ^() {
    %b = abs(%a) : f32[2]
    yield(%b)
  } ^() {
    yield(%a)
  }
  %r = loop(%n, _, %y) : f32[2] ^(%k: i64[], %v: f32[2]) {
    %yes = constant {value = bool[] <true>} : bool[]
    %f = neg(%v) : f32[2]
    yield(%yes, %f)
  }
  %z = floor(%r) : f32[2]
  return(%z, %y)
}
"""
    )
    assert near == behind == {"x", "a", "b", "y", "r", "f"}


def test_a_kink_is_no_discontinuity() -> None:
    """A leaky ReLU, an ELU, and a threshold, which is one."""
    near, _ = found_in(
        """
func @main(%x: f32[2], %y: f32[2], %z: f32[2], %s: f32[2]) -> ("a", "b", "c") {
  %none = constant {value = f32[] <0.0>} : f32[]
  %one = constant {value = f32[] <1.0>} : f32[]
  %k = less(%x, %none) : bool[2]
  %l = mul(%x, %s) : f32[2]
  %a = where(%k, %l, %x) : f32[2]
  %m = less(%none, %y) : bool[2]
  %e = exp(%y) : f32[2]
  %f = sub(%e, %one) : f32[2]
  %b = where(%m, %y, %f) : f32[2]
  %n = less(%z, %none) : bool[2]
  %c = where(%n, %one, %z) : f32[2]
  return(%a, %b, %c)
}
"""
    )
    assert near == {"z", "none"}


def test_what_is_written_counts() -> None:
    near, behind = found_in(
        """
func @main(%x: f32[2], %y: f32[2]) -> ("z") {
  %s = state() {variable = "s", dtype = f32, shape = [2]} : f32[2]
  %a = neg(%x) : f32[2]
  %w = assign(%s, %a) : f32[2]
  return(%y)
}
"""
    )
    assert {"x", "a"} <= near and {"x", "a"} <= behind
    assert "y" not in behind


# values, at the ends of ranges


def _after(module: Module) -> Module:
    steps = [canonicalize.CANONICALIZE, algebra.ALGEBRA, FOLD_CONSTANTS, DCE]
    run_passes(module, steps, PassContext())
    return module


def _exponents(rng: np.random.Generator, count: int, most: int) -> np.ndarray:
    size = np.ldexp(rng.uniform(1, 2, count), rng.integers(-most, most + 1, count))
    return np.asarray(size * rng.choice([-1, 1], count), F32)


def _sum(rng: np.random.Generator, most: int, op: str) -> Module:
    b = Builder()
    x = b.input("x", "f32[40, 3]")
    y = b.op("matmul", x, b.constant(_exponents(rng, 12, most).reshape(3, 4)))
    b.output("y", b.op(op, y, b.constant(_exponents(rng, 4, most))))
    return b.module()


def _quotient(rng: np.random.Generator, most: int, _: str) -> Module:
    b = Builder()
    x = b.input("x", "f32[40, 3]")
    b.output("y", b.op("div", x, b.constant(_exponents(rng, 3, most))))
    return b.module()


@pytest.mark.parametrize(("make", "op"), [(_sum, "mul"), (_sum, "div"), (_quotient, "")])
def test_ranges_are_those_of_the_model(
    make: Callable[[np.random.Generator, int, str], Module], op: str
) -> None:
    """No infinity appears or goes, nothing is lost that the model has: exponents from a few bits to
    all of them."""
    changed = 0
    for seed in range(120):
        most = int(np.random.default_rng(seed).choice([3, 20, 60, 126]))
        before, after = (make(np.random.default_rng(seed), most, op) for _ in range(2))
        _after(after)
        names = [o.name for o in after.main.walk()]
        if op not in names and "div" not in names:
            changed += 1
        x = _exponents(np.random.default_rng(seed + 1), 120, 94).reshape(40, 3)
        x[0], x[1, 0], x[2, 1], x[3] = 0.0, np.inf, np.nan, -0.0
        with np.errstate(all="ignore"):
            (a,), (b,) = (list(run(m.main, {"x": x})) for m in (before, after))
        assert np.array_equal(np.isnan(a), np.isnan(b)), seed
        assert np.array_equal(np.isinf(a), np.isinf(b)), seed
        finite = np.isfinite(a)
        wide, size = _reference(before, x)
        allowed = (16 * 2.0**-24) * size[finite] + 2.0**-146
        assert (np.abs(b[finite].astype(np.float64) - wide[finite]) <= allowed).all(), seed
    assert changed > 10


def _reference(module: Module, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The result in double precision, and the sum of the sizes of its terms."""
    constants = [op.attrs["value"].array for op in module.main.walk() if op.name == "constant"]
    wide = [np.asarray(c, np.float64) for c in constants]
    is_sum = len(wide) == 2
    names = [op.name for op in module.main.walk()]
    with np.errstate(all="ignore"):
        total = x.astype(np.float64) @ wide[0] if is_sum else x.astype(np.float64)
        size = np.abs(x).astype(np.float64) @ np.abs(wide[0]) if is_sum else np.abs(total)
        by = wide[-1] if "mul" in names else 1 / wide[-1]
        return total * by, size * np.abs(by)


def special(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros of both signs, infinities, NaN, subnormal and the largest numbers, and others."""
    info = np.finfo(dtype)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, info.tiny / 4, 1.5]
    return np.asarray(rng.choice(np.array(ends, dtype), shape), dtype)


# a tap on padding adds nothing, even if its weight is infinite
EXACT_CASES = [p for p in cases("passes/canonicalize") if p.stem not in ("far-taps", "pads")]


@pytest.mark.parametrize("path", EXACT_CASES, ids=lambda path: path.stem)
def test_canonical_form_keeps_every_bit(path: object) -> None:
    text = Case.read(path).before  # type: ignore[arg-type]
    before, after = import_text(text), import_text(text)
    run_passes(after, [canonicalize.CANONICALIZE], PassContext())
    for seed in range(20):
        inputs = random_inputs(before.main, seed)
        rng = np.random.default_rng(seed)
        for name, array in inputs.items():
            if array.dtype.kind == "f":
                inputs[name] = special(rng, array.shape, array.dtype)
        with np.errstate(all="ignore"):
            results = [list(run(m.main, inputs)) for m in (before, after)]
        for a, b in zip(*results, strict=True):
            assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), seed
            if a.dtype.kind == "f":
                numbers = ~np.isnan(a)
                assert np.array_equal(np.signbit(a[numbers]), np.signbit(b[numbers])), seed


# compiled


def _graph(build: Callable[[Builder, Value], Value], extent: str) -> Module:
    b = Builder()
    b.output("y", build(b, b.input("x", f"f32[{extent}]")))
    return b.module()


def _c(b: Builder, *numbers: float) -> Value:
    made: Value = b.constant(np.asarray(numbers[0] if len(numbers) == 1 else numbers, F32))
    return made


GRAPHS: dict[str, Callable[[Builder, Value], Value]] = {
    "floor of a quotient": lambda b, x: b.op("floor", b.op("div", x, _c(b, 41))),
    "integer of a quotient": lambda b, x: b.op("cast", b.op("div", x, _c(b, 41)), to="i64"),
    "steps by hand": lambda b, x: b.op(
        "mul", b.op("round", b.op("div", x, _c(b, 0.1))), _c(b, 0.1)
    ),
    "rounding by a large term": lambda b, x: b.op(
        "add", b.op("add", b.op("mul", x, _c(b, 10)), _c(b, 12582912)), _c(b, -12582912)
    ),
    "an infinity": lambda b, x: b.op("mul", b.op("mul", x, _c(b, 1e30)), _c(b, 1e-30)),
    "an underflow": lambda b, x: b.op("mul", b.op("mul", x, _c(b, 1e-30)), _c(b, 1e30)),
    "sign of zero": lambda b, x: b.op("div", _c(b, 1), b.op("add", x, _c(b, 0))),
    "a root at its edge": lambda b, x: b.op(
        "sqrt", b.op("sub", _c(b, 1), b.op("div", x, _c(b, 41)))
    ),
    "a comparison": lambda b, x: b.op("less", b.op("div", x, _c(b, 41)), _c(b, 1)),
    "behind a sum": lambda b, x: b.op(
        "floor", b.op("reduce_sum", b.op("div", x, _c(b, 41)), axes=(0,), keepdims=True)
    ),
    "power of two": lambda b, x: b.op("floor", b.op("div", x, _c(b, 8))),
    "rounding by a large term, scaled": lambda b, x: b.op(
        "mul", b.op("add", b.op("mul", x, _c(b, 10)), _c(b, 12582912)), _c(b, 3)
    ),
}


@pytest.mark.parametrize("extent", ["64", "N"])
def test_half_precision_is_rounded_before_a_discontinuity(extent: str) -> None:
    half = np.float16
    x = np.array([0, -0.0, 41, 82, -41, 0.44, 0.55, *(np.arange(57) * 0.05)], half)
    for name, other in (("floor", 41), ("round", 0.1), ("ceil", 3)):
        b = Builder()
        quotient = b.op("div", b.input("x", f"f16[{extent}]"), b.constant(half(other)))
        b.output("y", b.op(name, quotient))
        with aot.load(aot.compile(b.module(), targets=["host"])) as program:
            found = program({"x": x})["y"]
        expected = {"floor": np.floor, "round": np.rint, "ceil": np.ceil}[name](x / half(other))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("extent", ["64", "N"])
def test_a_program_gives_the_models_bits(name: str, extent: str) -> None:
    ends = [0, -0.0, 41, 82, 164, -41, 0.44, 0.55, 1.57, 1e10, -1e10, 1e-10, 3e38, 1e-40, 0.35]
    more = np.arange(64 - len(ends)) * 0.05
    x = np.array([*ends, *more], F32)
    if name == "behind a sum":
        x = np.array([41, 82] * 32, F32)
    with np.errstate(all="ignore"):
        (expected,) = run(_graph(GRAPHS[name], extent).main, {"x": x})
    with aot.load(aot.compile(_graph(GRAPHS[name], extent), targets=["host"])) as program:
        found = program({"x": x})["y"]
    assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")
    if expected.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        assert np.array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))
