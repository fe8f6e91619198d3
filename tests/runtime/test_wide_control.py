"""64-bit integers in loops, branches and states, on targets of 32 bits: as Python's that wrap.

What provably fits may be narrow on the way; the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import aot
from aot.errors import RuntimeFailure
from aot.frontends.text import import_text
from tests.support.samples_module import NATIVE
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
TARGETS = Path(__file__).parents[2] / "targets"
X = np.array([1, -7, 3_000_000_000, 2**40], np.int64)
RUNS = 9


def onnx(inputs: str, outputs: str, nodes: str) -> Any:
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    )


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def truncated(x: int, y: int) -> int:
    return abs(x) // y * (1 if x >= 0 else -1)


def repeated(start: Array, step: Callable[[int, int], int]) -> list[list[int]]:
    """What a loop carries after each run, of a step on an element and the run's number."""
    rows = [[int(v) for v in start]]
    for run in range(RUNS):
        rows.append([wrapped(step(v, run)) for v in rows[-1]])
    return rows[1:]


TRUTH = "t = Constant<value = bool {1}>()"


def loop(body: str, *, rows: bool = False) -> Any:
    """A model whose loop makes `w` (and rows `r`) of the carried `v`."""
    more = ", int64[4] r" if rows else ""
    return onnx(
        "int64[4] x, int64 n",
        "int64[4] y" + (", int64[R, 4] all" if rows else ""),
        f"{TRUTH} y{', all' if rows else ''} = Loop(n, t, x) <body = b (int64 i, bool c, "
        f"int64[4] v) => (bool again, int64[4] w{more}) {{ again = Identity(c) {body} }}>",
    )


N = np.array(RUNS, np.int64)
GROWING = loop(
    "k = Constant<value = int64 {3}>() a = Constant<value = int64 {5}>() m = Mul(v, k) "
    "w = Add(m, a)"
)
DIVIDED = loop(
    "k = Constant<value = int64 {7}>() a = Constant<value = int64 {3}>() m = Mul(v, k) "
    "w = Div(m, a) r = Sub(w, v)",
    rows=True,
)
NESTED = loop(
    "two = Constant<value = int64 {2}>() z = Constant<value = int64 {0}>() m = Mod(i, two) "
    "e = Equal(m, z) w = If(e) <then_branch = a () => (int64[4] p) { p = Add(v, x) }, "
    "else_branch = d () => (int64[4] q) { q = Mul(v, two) }>"
)
ENDED = onnx(
    "int64 x",
    "int64 y, int64 count",
    f"{TRUTH} z = Constant<value = int64 {{0}}>() e = Constant<value = int64 "
    "{9223372036854775807}>() y, count = Loop(e, t, x, z) <body = b (int64 i, bool c, int64 v, "
    "int64 q) => (bool again, int64 w, int64 p) { k = Constant<value = int64 {3}>() w = Mul(v, k) "
    "f = Constant<value = float {1.0e12}>() most = Cast<to = 7>(f) again = Less(w, most) "
    "one = Constant<value = int64 {1}>() p = Add(q, one) }>",
)
CHOSEN = onnx(
    "int64[4] x, bool c",
    "int64[4] y, float[4] f",
    "k = Constant<value = int64 {1000}>() y = If(c) <then_branch = a () => (int64[4] p) "
    "{ p = Mul(x, k) }, else_branch = b () => (int64[4] q) { q = Div(x, k) }> f = Cast<to = 1>(y)",
)
# What is carried is a counter, positions, and low bits of sums that only indices read.
NARROW = onnx(
    "float[10, 3] table, int64[2] ids, int64 n",
    "float[2, 3] y, int64[2] last, int64 count",
    f"{TRUTH} z = Constant<value = float {{0.0}}>() s = Constant<value = int64[2] {{2, 3}}>() "
    "o = Expand(z, s) nil = Constant<value = int64 {0}>() "
    "y, last, count = Loop(n, t, o, ids, nil) <body = b (int64 i, bool c, float[2, 3] v, int64[2] "
    "id, int64 q) => (bool again, float[2, 3] w, int64[2] next, int64 p) { g = Gather(table, id) "
    "w = Add(v, g) next = ArgMax<axis = 1, keepdims = 0>(w) again = Identity(c) "
    "one = Constant<value = int64 {1}>() p = Add(q, one) }>",
)


def narrow_case() -> tuple[Feeds, Feeds]:
    table = np.arange(30, dtype=np.float32).reshape(10, 3) % 7
    ids, total = np.array([4, 9]), np.zeros((2, 3), np.float32)
    feeds: Feeds = {"table": table, "ids": ids, "n": N}
    for _ in range(RUNS):
        total = total + table[ids]
        ids = total.argmax(axis=1)
    return feeds, {"y": total, "last": ids, "count": N}


def ended_case() -> tuple[Feeds, Feeds]:
    value, count = 5, 0
    while True:
        value, count = value * 3, count + 1
        if value >= 10**12:
            break
    return {"x": np.array(5)}, {"y": np.array(value), "count": np.array(count)}


def chosen_case(choice: bool) -> tuple[Feeds, Feeds]:
    y = np.array([v * 1000 if choice else truncated(v, 1000) for v in X.tolist()])
    return {"x": X, "c": np.array(choice)}, {"y": y, "f": y.astype(np.float32)}


def loop_case(step: Callable[[int, int], int]) -> tuple[Feeds, list[list[int]]]:
    return {"x": X, "n": N}, repeated(X, step)


def check(run: Callable[[Any, Feeds], dict[str, Array]]) -> None:
    """`run` compiles a model and runs it once."""

    def same(model: Any, feeds: Feeds, wanted: Feeds) -> None:
        found = run(model, feeds)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, name)

    feeds, rows = loop_case(lambda v, run: v * 3 + 5)
    same(GROWING, feeds, {"y": np.array(rows[-1])})
    feeds, rows = loop_case(lambda v, run: truncated(wrapped(v * 7), 3))
    steps = [[wrapped(b - a) for a, b in zip(x, y)] for x, y in zip([X.tolist(), *rows], rows)]
    same(DIVIDED, feeds, {"y": np.array(rows[-1]), "all": np.array(steps)})
    states = [list(map(int, X))]
    for number in range(RUNS):
        pairs = zip(states[-1], X.tolist(), strict=True)
        states.append([wrapped(v * 2 if number % 2 else v + x) for v, x in pairs])
    same(NESTED, feeds, {"y": np.array(states[-1])})
    same(ENDED, *ended_case())
    for choice in (True, False):
        same(CHOSEN, *chosen_case(choice))
    same(NARROW, *narrow_case())


def options(model: Any) -> dict[str, Any]:
    return {"max_extents": {"Loop:y": 50}} if model is DIVIDED else {}


def narrow_target(folder: Path) -> str:
    """A CPU that this machine runs, as if it had no wide types."""
    text = (TARGETS / f"{NATIVE[0]}.toml").read_text()
    for dtype in ("f64", "i64", "u64"):
        assert f'"{dtype}", ' in text
        text = text.replace(f'"{dtype}", ', "")
    path = folder / "narrow.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("lacks", [False, True])
def test_on_a_cpu(tmp_path: Path, lacks: bool) -> None:
    target = narrow_target(tmp_path) if lacks else NATIVE[0]

    def run(model: Any, feeds: Feeds) -> dict[str, Array]:
        with aot.load(aot.compile(model, targets=[target], **options(model))) as program:
            return {name: np.array(v) for name, v in program(feeds).items()}

    check(run)


@pytest.mark.vulkan
@pytest.mark.parametrize("has_host", [False, True])
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, has_host: bool, tmp_path: Path) -> None:
    targets = ["vulkan-1.1", *NATIVE[:has_host]]

    def run(model: Any, feeds: Feeds) -> dict[str, Array]:
        compiled = aot.compile(model, targets=targets, **options(model))
        with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
            return {name: np.array(v) for name, v in program(feeds).items()}

    check(run)


KEPT = """
func @main(%x: i64[4]) -> ("y", "is_more") {
  %s = state {variable = "s", dtype = i64, shape = [4]} : i64[4]
  %sum = add(%s, %x) : i64[4]
  %half = constant {value = i64[] <2>} : i64[]
  %y = div(%sum, %half) : i64[4]
  %is_more = less(%y, %s) : bool[4]
  %after = assign(%s, %sum) : i64[4]
  return(%y, %is_more)
}
"""


def check_kept(program: Callable[[Feeds], dict[str, Array]]) -> None:
    kept = [0] * 4
    for factor in (1, 3, 1000):
        found = program({"x": X * factor})
        sums = [wrapped(s + factor * int(v)) for s, v in zip(kept, X, strict=True)]
        halves = [truncated(v, 2) for v in sums]
        np.testing.assert_array_equal(found["y"], halves)
        np.testing.assert_array_equal(
            found["is_more"], [h < s for h, s in zip(halves, kept, strict=True)]
        )
        kept = sums


@pytest.mark.parametrize("lacks", [False, True])
def test_states_on_a_cpu(tmp_path: Path, lacks: bool) -> None:
    target = narrow_target(tmp_path) if lacks else NATIVE[0]
    with aot.load(aot.compile(import_text(KEPT), targets=[target])) as program:
        check_kept(program)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_states_on_a_gpu(driver: str, tmp_path: Path) -> None:
    compiled = aot.compile(import_text(KEPT), targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check_kept(program)


# A count that the model computes of data, of which 32 bits would hold another one.
COUNTED = onnx(
    "int64 a, int64 b",
    "float[R] y",
    "one = Constant<value = int64[1] {-1}>() m = Mul(a, b) s = Reshape(m, one) "
    "z = ConstantOfShape(s) y = Add(z, z)",
)


@pytest.mark.parametrize("lacks", [False, True])
def test_a_count_beyond_32_bits_is_refused_in_the_run(tmp_path: Path, lacks: bool) -> None:
    target = narrow_target(tmp_path) if lacks else NATIVE[0]
    compiled = aot.compile(COUNTED, targets=[target], max_extents={"Mul:m": 100})
    with aot.load(compiled) as program:
        found = program({"a": np.array(3), "b": np.array(4)})
        assert found["y"].shape == (12,)
        with pytest.raises(RuntimeFailure, match=str(2**32 + 3 * 2)):
            program({"a": np.array(2), "b": np.array(2**31 + 3)})
