"""What kept executables apart: each rule on two that differ in that alone, in exact words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.driver import missed_merges as missed_merges_file
from aot.driver.missed_merges import Settings, missed_merges
from aot.frontends.text import import_text
from aot.ir.graph import Module
from aot.passes.specialise.despecialise import BOUNDS, despecialise
from aot.target import selection as targets
from aot.target.model import Target

TARGET = targets.load("x86-64-v3")
UNARY = ("f32[4, 16]", "f32[4, 16]")


def executable(name: str, *lines: str, inputs: str, bindings: str = "2, 3") -> str:
    """An executable whose last line names its result."""
    *body, result = lines
    text = "".join(f"  {line}\n" for line in body)
    return (
        f'executable @{name}({inputs}) -> ("r0") bindings [{bindings}] {{\n{text}'
        f"  return({result})\n}}\n"
    )


def misses(
    first: str,
    second: str,
    types: tuple[str, ...] = UNARY,
    others: tuple[str, ...] | None = None,
    ties: tuple[str, str] = ("-1", "-1"),
    target: Target = TARGET,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Of a module with a dispatch of each; `types` are those of the inputs and of the result."""
    module = dispatching(first, second, types, others, ties)
    return missed_merges(module, {"e0": 300, "e1": 200}, target, Settings(**settings))


def dispatching(
    first: str,
    second: str,
    types: tuple[str, ...],
    others: tuple[str, ...] | None = None,
    ties: tuple[str, str] = ("-1", "-1"),
) -> Module:
    head, body, results = [], [], []
    for number, own in enumerate((types, others or types)):
        names = [f"%{letter}{number}" for letter in "abc"[: len(own) - 1]]
        head += [f"{name}: {type}" for name, type in zip(names, own, strict=False)]
        body.append(
            f"  %r{number} = dispatch({', '.join(names)}) {{executable = @e{number}, "
            f'ties = [{ties[number]}]}} : {own[-1]} @"node{number}"\n'
        )
        results.append(f"%r{number}")
    text = (
        f'func @main({", ".join(head)}) -> ("x", "y") {{\n{"".join(body)}'
        f"  return({', '.join(results)})\n}}\n{first}{second}"
    )
    return import_text(text)


def unary(op: str, type: str = "f32[4, 16]") -> tuple[str, ...]:
    return (f"%1 = {op} : {type}", "%1")


def pair(first: tuple[str, ...], second: tuple[str, ...], **changes: Any) -> list[dict[str, Any]]:
    """Two executables of one input."""
    a = executable("e0", *first, inputs="%0: f32[4, 16]")
    b = executable("e1", *second, inputs="%0: f32[4, 16]")
    return misses(a, b, **changes)


def test_a_missed_merge_says_who_why_and_how_much() -> None:
    assert pair(
        ("%1 = relu(%0) : f32[4, 16]", "%2 = exp(%1) : f32[4, 16]", "%2"),
        ("%1 = relu(%0) : f32[4, 16]", "%2 = tanh(%1) : f32[4, 16]", "%2"),
    ) == [
        {
            "executables": ["e0", "e1"],
            "nodes": ["node0", "node1"],
            "rule": "they compute different ops",
            "first": "%2 = exp(%1) : f32[4, 16]",
            "second": "%2 = tanh(%1) : f32[4, 16]",
            "bytes": 200,
        }
    ]


NHWC = "{order=0:2:3:1}"
PANELS = "{splits=0/16 order=0:2:3:1:4}"


def conv(name: str, x: str, w: str, y: str, attrs: str = "") -> str:
    return executable(
        name,
        f"%2 = conv(%0, %1) {{strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]{attrs}}} "
        f": {y}",
        "%2",
        inputs=f"%0: {x}, %1: {w}",
        bindings="2, 0, 3",
    )


def convs(
    x: tuple[str, str], w: tuple[str, str], y: tuple[str, str], **settings: Any
) -> list[dict[str, Any]]:
    made = [conv(f"e{n}", x[n], w[n], y[n]) for n in (0, 1)]
    types = [(x[n], w[n], y[n]) for n in (0, 1)]
    return misses(made[0], made[1], types[0], types[1], **settings)


def relu(type: str, bindings: str = "2, 3") -> list[str]:
    return [
        executable(f"e{n}", *unary("relu(%0)", type), inputs=f"%0: {type}", bindings=bindings)
        for n in (0, 1)
    ]


def said(found: list[dict[str, Any]]) -> tuple[str, str, str]:
    (miss,) = found
    return miss["rule"], miss["first"], miss["second"]


def test_one_constant_s_bytes() -> None:
    bodies = [
        (f"%1 = constant {{value = f32[] <{v}>}} : f32[]", "%2 = mul(%0, %1) : f32[4, 16]", "%2")
        for v in (0.5, 0.25)
    ]
    assert said(pair(*bodies)) == (
        "a constant's bytes are part of the code",
        "%1 = constant {value = f32[] <0.5>} : f32[]",
        "%1 = constant {value = f32[] <0.25>} : f32[]",
    )


def test_a_constant_s_type_with_equal_bytes() -> None:
    bodies = [
        (f"%1 = constant {{value = {t}[] <0>}} : {t}[]", "%2 = cast(%1) {to = f32} : f32[]",
         "%3 = mul(%0, %2) : f32[4, 16]", "%3")
        for t in ("i32", "u32")
    ]  # fmt: skip
    assert said(pair(*bodies)) == (
        "constants of other types are part of the code",
        "%1 = constant {value = i32[] <0>} : i32[]",
        "%1 = constant {value = u32[] <0>} : u32[]",
    )


def test_the_order_of_operands() -> None:
    inputs, types = "%0: f32[4], %1: f32[4]", ("f32[4]", "f32[4]", "f32[4]")
    made = [
        executable(f"e{n}", f"%2 = sub({a}) : f32[4]", "%2", inputs=inputs, bindings="2, 2, 3")
        for n, a in enumerate(("%0, %1", "%1, %0"))
    ]
    assert said(misses(made[0], made[1], types)) == (
        "operands are others, or in another order",
        "%2 = sub(%0, %1) : f32[4]",
        "%2 = sub(%1, %0) : f32[4]",
    )


def test_ties() -> None:
    made = relu("f32[4, 16]", "1, 1")
    for settings in (on_gpu(), {"despecialise": False}):
        assert said(misses(made[0], made[1], ties=("-1", "0"), **settings)) == (
            "one may write over an operand that the other keeps",
            "ties [-1]",
            "ties [0]",
        )


def test_classes_of_buffers() -> None:
    made = relu("f32[4, 16]")[0], relu("f32[4, 16]", "1, 3")[1]
    for settings in (on_gpu(), {"despecialise": False}):
        assert said(misses(*made, **settings)) == (
            "their buffers are of other classes",
            "inputs outputs",
            "arena outputs",
        )


def on_gpu() -> dict[str, Any]:
    return {"target": targets.load("vulkan-1.1")}


def test_element_types() -> None:
    a, b = (executable(f"e{n}", *unary("relu(%0)", f"{t}[8]"), inputs=f"%0: {t}[8]")
            for n, t in enumerate(("f32", "f16")))  # fmt: skip
    found = misses(a, b, ("f32[8]", "f32[8]"), ("f16[8]", "f16[8]"))
    assert said(found) == (
        "element types are compiled in", "operand 0: f32[8]", "operand 0: f16[8]"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        (
            "f32[4, 16]",
            "f32[4, 16]{strides=32:1}",
            "one is dense and the other a part of something larger, with strides",
        ),
        ("f32[4, 16]", "f32[4, 16]{order=1:0}", "the order of dims in memory is compiled in"),
        (
            "f32[1, 16]",
            "f32[4, 16]",
            "a 1 in a shape leaves a loop or a step out, so it is no parameter",
        ),
        ("f32[4, 16]", "f32[4, 4, 4]", "they have other numbers of dims in a shape"),
    ],
)
def test_types_of_operands(first: str, second: str, rule: str) -> None:
    made = [
        executable(f"e{n}", *unary("relu(%0)", t), inputs=f"%0: {t}")
        for n, t in enumerate((first, second))
    ]
    found = misses(made[0], made[1], (first, first), (second, second))
    assert said(found) == (rule, f"operand 0: {first}", f"operand 0: {second}")


def test_small_numbers_of_weights() -> None:
    x, y = f"f32[1, 16, 20, 20]{NHWC}", (f"f32[1, 16, 18, 18]{NHWC}", f"f32[1, 16, 16, 16]{NHWC}")
    w = [f"f32[16, 16, {k}, {k}]{PANELS}" for k in (3, 5)]
    assert said(convs((x, x), (w[0], w[1]), y)) == (
        "numbers below 8 in a shape change loops (kernels, strides, pads), so they are no "
        "parameters",
        f"operand 1: {w[0]}",
        f"operand 1: {w[1]}",
    )


def test_attributes() -> None:
    x, w = f"f32[1, 16, 20, 20]{NHWC}", f"f32[16, 16, 1, 1]{PANELS}"
    y = [f"f32[1, 16, {n}, {n}]{NHWC}" for n in (20, 10)]
    made = conv("e0", x, w, y[0]), conv("e1", x, w, y[1]).replace("[1, 1], dil", "[2, 2], dil")
    rule, first, second = said(misses(*made, types=(x, w, y[0]), others=(x, w, y[1])))
    assert rule == "attribute strides is compiled in"
    assert "strides = [1, 1]" in first and "strides = [2, 2]" in second


def test_extents_that_would_cost_too_much_together() -> None:
    w = f"f32[64, 64, 1, 1]{PANELS}"
    x = [f"f32[1, 64, {n}, {n}]{NHWC}" for n in (40, 7)]
    found = convs((x[0], x[1]), (w, w), (x[0], x[1]), optimize="speed")
    rule, first, second = said(found)
    assert rule == (
        "only extents differ: sharing would take more code, "
        "or more time than --optimize speed allows"
    )
    assert first.startswith(f"{x[0]}, tile ") and second.startswith(f"{x[1]}, tile ")
    (miss,) = convs((x[0], x[1]), (w, w), (x[0], x[1]), despecialise=False)
    assert miss["rule"] == "only extents differ, and despecialising is off"


def test_depths_of_attentions() -> None:
    types = [(f"f32[1, 4, 64, {depth}]",) * 4 for depth in (32, 48)]
    made = [
        executable(
            f"e{n}",
            f"%3 = attention(%0, %1, %2) {{scale = 0.25}} : {own[3]}",
            "%3",
            inputs=", ".join(f"%{k}: {t}" for k, t in enumerate(own[:3])),
            bindings="2, 2, 2, 3",
        )
        for n, own in enumerate(types)
    ]
    assert said(misses(made[0], made[1], types[0], types[1])) == (
        "kernels of attention must know their depth", "attention of [32, 32]",
        "attention of [48, 48]",
    )  # fmt: skip


def test_extents_of_planes_that_are_resampled_along_both_axes() -> None:
    """Two maps are resized to one extent, as the side outputs of a segmentation network are."""
    b = Builder()
    for n, size in enumerate((160, 80)):
        x = b.input(f"x{n}", f"f32[1, 1, {size}, {size}]")
        for axis in (2, 3):
            positions = np.linspace(0, size - 2, 320).astype(np.int64)
            weights = np.full((2, 320), 0.5, np.float32)
            tables = b.constant(np.stack([positions, positions + 1])), b.constant(weights)
            x = b.op("resample", x, *tables, axis=axis)
        b.output(f"y{n}", b.op("sigmoid", x))
    module = aot.compile(b.module(), targets=["x86-64-v4"])
    assert said(module.stats["variants"][0]["missed_merges"]) == (
        "kernels of planes resampled along both axes must know their extents",
        "input of [160, 160], resample of [320, 160]",
        "input of [80, 80], resample of [320, 80]",
    )


def test_one_op_more() -> None:
    longer = ("%1 = relu(%0) : f32[4, 16]", "%2 = exp(%1) : f32[4, 16]", "%2")
    found = pair(longer, unary("relu(%0)"))
    assert said(found) == (
        "they compute different ops",
        "%2 = exp(%1) : f32[4, 16]",
        "return(%1)",
    )


def test_executables_that_have_little_in_common_are_no_missed_merge() -> None:
    assert pair(unary("relu(%0)"), unary("exp(%0)")) == []
    one = ("%1 = relu(%0) : f32[4, 16]", "%2 = exp(%1) : f32[4, 16]", "%2")
    other = ("%1 = tanh(%0) : f32[4, 16]", "%2 = neg(%1) : f32[4, 16]", "%2")
    assert pair(one, other) == []


def test_a_large_module_tells_of_its_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_merges_file, "MAX_EXECUTABLES", 20)
    monkeypatch.setattr(missed_merges_file, "MAX_PAIRS", 5)
    found = missed_merges(*chain_of(40), TARGET, Settings())
    assert [miss["bytes"] for miss in found] == [138, 137, 136, 135, 134]


def test_as_many_pairs_as_executables() -> None:
    """Each is compared with its neighbours alone, however many do the same."""
    found = missed_merges(*chain_of(40), TARGET, Settings())
    assert len(found) == 39
    assert [miss["bytes"] for miss in found] == list(range(138, 99, -1))


def chain_of(count: int) -> tuple[Module, dict[str, int]]:
    """A module with so many executables, which differ in extents, and their sizes from 100 on."""
    head = ", ".join(f"%a{n}: f32[{n + 9}]" for n in range(count))
    body = "".join(
        f"  %r{n} = dispatch(%a{n}) {{executable = @e{n}}} : f32[{n + 9}]\n" for n in range(count)
    )
    names = ", ".join(f'"r{n}"' for n in range(count))
    results = ", ".join(f"%r{n}" for n in range(count))
    text = f"func @main({head}) -> ({names}) {{\n{body}  return({results})\n}}\n"
    for n in range(count):
        text += executable(f"e{n}", *unary("relu(%0)", f"f32[{n + 9}]"), inputs=f"%0: f32[{n + 9}]")
    return import_text(text), {f"e{n}": 100 + n for n in range(count)}


@pytest.mark.parametrize("form", ["products", "winograd", "windows"])
def test_tiles_take_what_is_dense_and_what_is_part_of_something_larger(form: str) -> None:
    """As despecialising has it: of executables that run as tiles, extents alone differ."""
    parts = (f"f32[1, 64, 20, 20]{NHWC}", "f32[1, 64, 28, 28]{order=0:2:3:1 strides=1:1:3584:128}")
    kernel, window = 3, "strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]"
    made = [
        executable(
            f"e{n}",
            f"%1 = average_pool(%0) {{kernel = [3, 3], {window}}} : f32[1, 64, {s}, {s}]{NHWC}",
            "%1",
            inputs=f"%0: {x}",
        )
        for n, (x, s) in enumerate(zip(parts, (20, 28), strict=True))
    ]
    types = [(x, f"f32[1, 64, {s}, {s}]{NHWC}") for x, s in zip(parts, (20, 28), strict=True)]
    if form != "windows":
        attrs = ', algorithm = "winograd"' if form == "winograd" else ""
        w = f"f32[64, 64, {kernel}, {kernel}]{PANELS}"
        made = [
            conv(f"e{n}", x, w, y, attrs).replace("pads = [0, 0, 0, 0]", "pads = [1, 1, 1, 1]")
            for n, (x, y) in enumerate(types)
        ]
        types = [(x, w, y) for x, y in types]
    for optimize in ("speed", "size"):
        (miss,) = misses(made[0], made[1], types[0], types[1], optimize=optimize)
        assert miss["rule"].startswith(
            "only extents differ: sharing would take more code, or more time"
        ), miss
    both = dispatching(made[0], made[1], types[0], types[1])
    despecialise(both, TARGET, BOUNDS["size"])
    assert len(both.executables) == 1, "as the remark says"
