"""Which executables become one, which must not, and what they are told."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import aot.passes.fusion.outline
import aot.passes.specialise.slots
from aot.builder import Builder
from aot.frontends.text import import_text
from aot.ir.clone import clone_module
from aot.ir.dim_parser import parse
from aot.ir.graph import Module, Value
from aot.ir.text.printer import print_function, print_module
from aot.ir.verifier import verify
from aot.kernels.ir.text import to_text
from aot.kernels.lowering import lower, rules_of
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.passes.specialise.despecialise import BOUNDS, EXECUTABLE_BYTES, despecialise
from aot.target import selection as targets

TARGET = targets.load("x86-64-v4")
NHWC = "{order=0:2:3:1}"
ANY_SIZE = 1e9  # an executable costs so much that one for two is never too large


def passed(module: Module, optimize: str = "size", **options: Any) -> Module:
    """The module after all passes."""
    chosen = CompileOptions(targets=("x86-64-v4",), optimize=optimize, **options)
    run_passes(module, (*MODEL_PASSES, *TARGET_PASSES), PassContext(chosen, TARGET))
    verify(module)
    return module


@dataclass(frozen=True)
class Given:
    """An executable as text, and how it is dispatched."""

    inputs: tuple[str, ...]
    lines: tuple[str, ...]
    result: str
    bindings: str = ""
    ties: str = "-1"

    def text(self, name: str) -> str:
        head = ", ".join(f"%{n}: {t}" for n, t in enumerate(self.inputs))
        body = "".join(f"  {line}\n" for line in self.lines)
        bindings = self.bindings or ", ".join(["1"] * (len(self.inputs) + 1))
        last = self.lines[-1].split()[0]
        return (
            f'executable @{name}({head}) -> ("r0") bindings [{bindings}] {{\n{body}'
            f"  return({last})\n}}\n"
        )


def module_of(*given: Given) -> Module:
    """A module that dispatches each executable once, on inputs of its own."""
    head, body, results, texts = [], [], [], []
    for number, one in enumerate(given):
        names = [f"%x{number}_{n}" for n in range(len(one.inputs))]
        head += [f"{name}: {type}" for name, type in zip(names, one.inputs, strict=True)]
        body.append(
            f"  %r{number} = dispatch({', '.join(names)}) "
            f"{{executable = @e{number}, ties = [{one.ties}]}} : {one.result}\n"
        )
        results.append(f"%r{number}")
        texts.append(one.text(f"e{number}"))
    outputs = ", ".join(f'"y{n}"' for n in range(len(given)))
    main = f"func @main({', '.join(head)}) -> ({outputs}) {{\n{''.join(body)}"
    return import_text(f"{main}  return({', '.join(results)})\n}}\n{''.join(texts)}")


def kept(*given: Given, bound: float = 10.0, each: float = ANY_SIZE) -> int:
    module = module_of(*given)
    despecialise(module, TARGET, bound, each)
    verify(module)
    return len(module.executables)


def unary(rows: int, columns: int, op: str = "relu", layout: str = "", **changes: Any) -> Given:
    type = f"f32[{rows}, {columns}]"
    lines = (f"%1 = {op}(%0) : {type}{layout}",)
    return Given((type,), lines, f"{type}{layout}", **changes)


def conv(
    channels: int = 32,
    columns: int = 64,
    width: int = 20,
    *,
    kernel: int = 1,
    stride: int = 1,
    layout: str = NHWC,
    operands: str = "%0, %1, _",
) -> Given:
    out = (width - kernel) // stride + 1
    given = f"f32[1, {channels}, {width}, {width}]{NHWC}"
    weight = f"f32[{columns}, {channels}, {kernel}, {kernel}]{{splits=0/16 order=0:2:3:1:4}}"
    made = f"f32[1, {columns}, {out}, {out}]{layout}"
    attrs = f"strides = [{stride}, {stride}], dilations = [1, 1], pads = [0, 0, 0, 0]"
    line = f"%2 = conv({operands}) {{{attrs}}} : {made}"
    return Given((given, weight), (line,), made, "1, 0, 1")


def grouped(groups: int, each: int, width: int = 20) -> Given:
    """A convolution of `groups` groups of `each` channels and filters."""
    channels = groups * each
    image = f"f32[1, {channels}, {width}, {width}]{NHWC}"
    weight = f"f32[{channels}, {each}, 1, 1]{{order=2:3:1:0}}"
    attrs = "strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]"
    line = f"%2 = conv(%0, %1, _) {{{attrs}, group = {groups}}} : {image}"
    return Given((image, weight), (line,), image, "1, 0, 1")


def depthwise(channels: int, each: int, width: int = 20) -> Given:
    """A convolution of each channel by itself, with `each` filters for it."""
    image, made = (f"f32[1, {n}, {width}, {width}]{NHWC}" for n in (channels, channels * each))
    weight = f"f32[{channels * each}, 1, 3, 3]{{order=2:3:1:0}}"
    attrs = "strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]"
    line = f"%2 = conv(%0, %1, _) {{{attrs}, group = {channels}}} : {made}"
    return Given((image, weight), (line,), made, "1, 0, 1")


def binary(first: str, second: str, op: str = "sub", type: str = "f32[4, 64]") -> Given:
    return Given((type, type), (f"%2 = {op}({first}, {second}) : {type}",), type)


def constant(text: str, type: str = "f32[4]") -> Given:
    lines = (
        f"%1 = constant {{value = {type} <{text}>}} : {type}",
        f"%2 = mul(%0, %1) : {type}" if type == "f32[4]" else f"%2 = add(%0, %1) : {type}",
    )
    return Given((type,), lines, type)


PAIRS_THAT_MERGE: dict[str, tuple[Given, ...]] = {
    "ties": (unary(8, 64), unary(16, 64, ties="0")),
    "classes of buffers": (unary(8, 64), unary(16, 64, bindings="2, 1")),
    "classes of buffers alone": (unary(8, 64), unary(8, 64, bindings="2, 3")),
    "rows": (unary(8, 64), unary(24, 64)),
    "columns": (unary(8, 64), unary(8, 128)),
    "channels": (conv(32), conv(48)),
    "filters, few among them": (conv(columns=64), conv(columns=14)),
    "planes": (conv(width=20), conv(width=13)),
    "all of a convolution": (conv(32, 64, 20), conv(64, 96, 10), conv(128, 16, 5)),
    "a result that is part of a larger one": (
        conv(width=20),
        conv(width=20, layout="{order=0:2:3:1 strides=1:1:2560:128}"),
    ),
    "numbers of groups": (grouped(8, 32), grouped(16, 32), grouped(24, 32)),
    "columns of as many groups": (grouped(32, 4), grouped(32, 8), grouped(32, 16)),
    "columns of few groups": (grouped(4, 8), grouped(4, 24)),
    "channels by themselves": (depthwise(32, 1), depthwise(48, 1, 10)),
    "filters of channels by themselves": (depthwise(32, 2), depthwise(48, 2, 10)),
    "where parts lie": (
        conv(layout="{order=0:2:3:1 strides=1:1:2560:128}"),
        conv(layout="{order=0:2:3:1 strides=1:1:5120:256}"),
    ),
    "extents of a broadcast": tuple(
        Given(
            ("f32[5, 1, 16]",),
            (f"%1 = broadcast_to(%0) {{shape = [5, {n}, 16]}} : f32[5, {n}, 16]",),
            f"f32[5, {n}, 16]",
        )
        for n in (2, 4, 8)
    ),
}
PAIRS_THAT_DO_NOT: dict[str, tuple[Given, ...]] = {
    "an extent of 1": (unary(1, 64), unary(8, 64)),
    "kernels": (conv(kernel=1), conv(kernel=3)),
    "filters so few that rows are turned": (conv(columns=64), conv(columns=12)),
    "columns of a group": (grouped(8, 32), grouped(16, 16)),
    "columns of three groups": (grouped(3, 8), grouped(3, 24)),
    "how many filters each channel has": (depthwise(32, 1), depthwise(32, 2)),
    "how many filters each of several channels has": (depthwise(32, 1), depthwise(48, 2)),
    "strides of windows": (conv(kernel=3), conv(kernel=3, stride=2)),
    "operand order": (binary("%0", "%1"), binary("%1", "%0")),
    "one operand twice": (binary("%0", "%1", "add"), binary("%0", "%0", "add")),
    "ops": (unary(8, 64), unary(16, 64, "exp")),
    "a constant's bytes": (constant("1.0, 2.0, 3.0, 4.0"), constant("1.0, 2.0, 3.0, 5.0")),
    "signs of zero": (constant("0.0, 2.0, 3.0, 4.0"), constant("-0.0, 2.0, 3.0, 4.0")),
    "a constant": (unary(8, 64), unary(16, 64, bindings="0, 1")),
    "the order in memory": (unary(8, 64), unary(16, 64, layout="{order=1:0}")),
    "rows that can't be walked as one": (
        unary(8, 64),
        unary(16, 64, layout="{strides=80:1}"),
    ),
    "planes that can't be walked as one": (
        conv(width=20),
        conv(width=10, layout="{order=0:2:3:1 strides=1:1:900:64}"),
    ),
}


def one_bits() -> list[Given]:
    """Constants of equal bytes: 1.0 as f32 is 1065353216 as i32."""
    return [constant("1.0, 1.0, 1.0, 1.0"), constant("splat 1065353216", "i32[4]")]


@pytest.mark.parametrize("case", PAIRS_THAT_MERGE)
def test_what_merges(case: str) -> None:
    assert kept(*PAIRS_THAT_MERGE[case]) == 1


def test_kernels_stay_apart_where_one_for_all_is_larger() -> None:
    """One kernel has code for whole tiles and for what is left, by rows and by columns, where two
    know what they need; it is smaller than many."""
    two = conv(32, 64, 20), conv(64, 96, 10)
    many = tuple(conv(32 * n, 32 * n + 32, 2 * n + 10) for n in range(1, 9))
    assert (kept(*two), kept(*two, each=EXECUTABLE_BYTES)) == (1, 2)
    assert (kept(*many), kept(*many, each=EXECUTABLE_BYTES)) == (1, 1)


def test_a_class_of_buffers_is_a_parameter_of_its_own() -> None:
    """What reads an input, and what writes an output, are told where their buffers are."""
    module = module_of(
        *(unary(8, 64, bindings=classes) for classes in ("2, 1", "1, 1", "1, 3")),
    )
    despecialise(module, TARGET, 0.0)
    verify(module)
    (executable,) = module.executables
    assert (executable.dim_names, executable.bindings) == (("d0", "d1"), ("d0", "d1"))
    given = [op.attrs["dims"] for op in module.main.block if op.name == "dispatch"]
    assert given == [(2, 1), (1, 1), (1, 3)]
    text = to_text(lower(executable, TARGET))
    assert "in class d0 at in_offset" in text and "in class d1 at out_offset" in text
    assert import_text(print_module(module)).executables[0].bindings == ("d0", "d1")


def test_a_gpu_s_kernels_know_the_classes_of_their_buffers() -> None:
    module = module_of(unary(8, 64), unary(8, 64, bindings="2, 1"), unary(8, 64, ties="0"))
    despecialise(module, targets.load("vulkan-1.1"), 10.0)
    assert len(module.executables) == 3


def test_a_gpu_is_saved_pipelines_whatever_their_code() -> None:
    module = module_of(conv(32, 64, 20), conv(64, 96, 10))
    despecialise(module, targets.load("vulkan-1.1"), 10.0)
    assert len(module.executables) == 1


@pytest.mark.parametrize("case", PAIRS_THAT_DO_NOT)
def test_what_does_not(case: str) -> None:
    given = PAIRS_THAT_DO_NOT[case]
    assert kept(*given) == len(given)


def test_a_constant_s_type_with_equal_bytes() -> None:
    assert kept(*one_bits()) == 2


class Colliding:
    """A key whose hash says nothing."""

    def __init__(self, key: Hashable) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and self.key == other.key

    def __hash__(self) -> int:
        return 0


def test_a_hash_alone_merges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = aot.passes.specialise.slots.slots_of

    def colliding(*given: Any, **named: Any) -> Any:
        key, slots = original(*given, **named)
        return Colliding(key), slots

    monkeypatch.setattr("aot.passes.specialise.slots.slots_of", colliding)
    everything = [g for pair in PAIRS_THAT_DO_NOT.values() for g in pair] + one_bits()
    apart = len(dict.fromkeys(everything))
    # what is no pair's other half may merge: three of the unary ones do, and two convolutions
    collided = kept(*dict.fromkeys(everything))
    monkeypatch.undo()
    assert collided == kept(*dict.fromkeys(everything)) <= apart


def layers(values: Sequence[np.ndarray[Any, Any]]) -> Module:
    """A dispatch for each constant, on an input of its own."""
    b = Builder()
    for number, value in enumerate(values):
        x: Value = b.input(f"x{number}", f"{'f32' if value.dtype == np.float32 else 'i32'}[4, 64]")
        b.output(f"y{number}", b.op("mul", x, b.constant(value)))
    return b.module()


def test_outlining_never_merges_by_hash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are operands: their bytes are no difference, their types and extents are."""
    rng = np.random.default_rng(1)
    values = [
        rng.standard_normal((4, 64)).astype(np.float32),
        rng.standard_normal((4, 64)).astype(np.float32),
        np.full((4, 64), 3, np.int32),
        rng.standard_normal((1, 64)).astype(np.float32),
    ]
    plain = passed(layers(values), disable=("despecialise", "fusion"))
    original = aot.passes.fusion.outline.identity
    monkeypatch.setattr(
        aot.passes.fusion.outline, "identity", lambda *given: Colliding(original(*given))
    )
    collided = passed(layers(values), disable=("despecialise", "fusion"))
    assert len(collided.executables) == len(plain.executables) == 3
    assert list(map(print_function, collided.executables)) == list(
        map(print_function, plain.executables)
    )


def test_parameters_are_what_differs() -> None:
    module = module_of(conv(32, 64, 20), conv(48, 128, 20))
    despecialise(module, TARGET, 10.0)
    (made,) = module.executables
    assert [str(v.type) for v in made.inputs] == [
        "f32[1, 16*d0, 20, 20]{order=0:2:3:1}",
        "f32[64*d1, 16*d0, 1, 1]{splits=0/16 order=0:2:3:1:4}",
    ]
    assert str(made.results[0].type) == "f32[1, 64*d1, 20, 20]{order=0:2:3:1}"
    dims = [op.attrs["dims"] for op in module.main.walk() if op.name == "dispatch"]
    assert dims == [(2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("groups", "each", "columns", "count"),
    [
        ((8, 16), 32, "64*d0", "2*d0"),
        ((19, 46), 8, "8*d0", "d0"),
        ((10, 25), 24, "24*d0", "d0"),  # columns are no multiple of a power of two
        ((9, 15), 17, "17*d0", "d0"),
        ((32, 32), (4, 12), "64*d0", "32"),
        ((24, 24), (4, 10), "48*d0", "24"),
        ((4, 4), (6, 10), "8*d0", "4"),
    ],
)
def test_kernels_know_where_a_group_ends(
    groups: tuple[int, int], each: int | tuple[int, int], columns: str, count: str
) -> None:
    """So that they have tiles."""
    sizes = (each, each) if isinstance(each, int) else each
    module = module_of(*(grouped(n, c) for n, c in zip(groups, sizes, strict=True)))
    despecialise(module, TARGET, 10.0)
    (made,) = module.executables
    assert made.results[0].type.dims[1] == parse(columns)
    assert next(iter(made.block)).attrs["group"] == parse(count)
    assert "scratch acc: f32[8]" not in to_text(lower(made, TARGET))


def test_kernels_know_how_many_filters_a_channel_has() -> None:
    """So that lanes go along the channels, which else would be gathered."""
    module = module_of(*(depthwise(channels, 2) for channels in (48, 96, 192)))
    despecialise(module, TARGET, 10.0)
    (made,) = module.executables
    assert made.results[0].type.dims[1] == parse("32*d0")
    assert next(iter(made.block)).attrs["group"] == parse("16*d0")


def test_a_stride_is_a_product_where_it_is_one_in_all() -> None:
    parts = [
        conv(width=w, layout=f"{{order=0:2:3:1 strides=1:1:{w * s}:{s}}}")
        for w, s in ((20, 128), (10, 256))
    ]
    module = module_of(*parts)
    despecialise(module, TARGET, 10.0)
    (made,) = module.executables
    assert str(made.results[0].type) == (
        "f32[1, 64, 2*d0, 2*d0]{order=0:2:3:1 strides=1:1:128*d0*d1:64*d1}"
    )


def test_a_product_is_one_whose_factors_come_later() -> None:
    """A group's row, which a result has as a plane of channels, was once a number of its own, so
    that each element's place was found by division."""
    parts = []
    for channels, size in ((32, 32), (64, 16), (32, 16)):
        row = channels // 8 * size * size
        flat, wide = f"f32[2, 8, {row}]", f"f32[2, {channels}, {size}, {size}]"
        lines = (
            f"%1 = exp(%0) : {flat}",
            f"%2 = reshape(%1) {{shape = [2, {channels}, {size}, {size}]}} : {wide}",
        )
        parts.append(Given((flat,), lines, wide))
    module = module_of(*parts)
    despecialise(module, TARGET, 10.0)
    (made,) = module.executables
    assert str(made.inputs[0].type) == "f32[2, 8, 1024*d0*d1*d1]"
    assert str(made.results[0].type) == "f32[2, 32*d0, 16*d1, 16*d1]"
    dims = [op.attrs["dims"] for op in module.main.walk() if op.name == "dispatch"]
    assert dims == [(1, 2), (2, 1), (1, 1)]


def test_nothing_is_spent_where_speed_is_all() -> None:
    """What differs in how often loops run is one; what changes loops is not."""
    assert kept(unary(8, 64), unary(16, 64), bound=0.0) == 2
    planes = [
        Given(
            (f"f32[{n}, 32, 20, 20]{NHWC}", conv().inputs[1]),
            (conv().lines[0].replace("f32[1, 64", f"f32[{n}, 64"),),
            f"f32[{n}, 64, 20, 20]{NHWC}",
            "1, 0, 1",
        )
        for n in (2, 3)
    ]
    assert kept(*planes, bound=0.0) == 1
    assert kept(conv(32), conv(48), bound=0.0) == 2


def family(count: int) -> list[Given]:
    return [conv(16 * (n % 7 + 1), 16 * (n % 5 + 1), 4 + n % 11) for n in range(count)]


def test_more_may_be_spent_for_fewer() -> None:
    given = family(30)
    counts = [kept(*given, bound=b) for b in (0.0, 0.002, 0.01, 0.05, 10.0)]
    assert all(a >= b for a, b in pairwise(counts))
    assert counts[0] > counts[3] and counts[-1] == 1
    assert list(BOUNDS.values()) == sorted(BOUNDS.values())


def test_a_kernel_that_another_rule_builds_is_priced_so() -> None:
    """Groups over planes have a rule of their own, which wants extents known: the plan is the same
    before and after, and the kernel for all sizes took 1.64 times as long."""
    how = "strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1], group = 4"
    given = [
        Given(
            (planes := f"f32[1, 32, {n}, {n}]", "f32[32, 8, 3, 3]{order=2:3:1:0}"),
            (f"%2 = conv(%0, %1, _) {{{how}}} : {planes}",),
            *(planes, "1, 0, 1"),
        )
        for n in (56, 40, 28, 20)
    ]
    target = targets.load("x86-64-v3")
    for bound, count in ((BOUNDS["balanced"], 4), (BOUNDS["size"], 1)):
        module = module_of(*given)
        despecialise(module, target, bound)
        assert len(module.executables) == count
        own = {rules_of(function, target) for function in module.executables}
        assert (own == {("windows/grouped_planes",)}) == (count == 4)


def test_windows_whose_channels_lie_pages_apart_stay_apart() -> None:
    """A kernel that knows it reads each line for all taps at once; one for both of these sizes took
    1.75 times as long."""
    how = "strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]"

    def conv(channels: int, height: int, width: int) -> Given:
        planes = f"f32[1, {channels}, {height}, {width}]"
        panels = f"f32[{channels}, {channels}, 3, 3]{{splits=0/16 order=0:2:3:1:4}}"
        op = f"%2 = conv(%0, %1, _) {{{how}}} : {planes}"
        return Given((planes, panels), (op,), planes, "1, 0, 1")

    assert 64 * 48 * 4 % 4096 == 0
    assert kept(conv(16, 34, 37), conv(32, 64, 48), bound=0.06) == 2
    assert kept(conv(16, 34, 37), conv(32, 64, 47), bound=0.06) == 1


def test_transposes_that_one_kernel_would_copy_lane_by_lane_stay_apart() -> None:
    """It took 1.8 times as long as squares of both sizes."""

    def turned(channels: int, height: int, width: int) -> Given:
        op = f"%1 = transpose(%0) {{perm = [0, 2, 3, 1]}} : f32[1, {height}, {width}, {channels}]"
        x = f"f32[1, {channels}, {height}, {width}]"
        return Given((x,), (op,), f"f32[1, {height}, {width}, {channels}]", "1, 1")

    given = turned(64, 70, 9), turned(96, 52, 61)
    assert kept(*given, bound=BOUNDS["balanced"]) == 2
    assert kept(*given, bound=BOUNDS["size"]) == 1


def test_many_members_merge_as_few_do() -> None:
    """More than are tried each with each."""
    assert kept(*family(70)) == 1


def test_the_order_of_executables_is_that_of_dispatches() -> None:
    module = module_of(unary(8, 64, "exp"), unary(8, 64), unary(16, 64, "exp"))
    despecialise(module, TARGET, 10.0)
    names = [op.attrs["executable"].name for op in module.main.walk() if op.name == "dispatch"]  # type: ignore[union-attr]
    assert names == ["e0", "e1", "e0"]
    assert [f.name for f in module.executables] == ["e0", "e1"]


def test_elements_side_by_side_are_another_family_than_elements_apart() -> None:
    """A stride of 1 is no slot, so that members would have unequal numbers of them."""

    def rows(count: int, layout: str) -> Given:
        return Given(
            (f"f32[{count}, 16]{layout}",),
            (f"%y = tanh(%0) : f32[{count}, 16]",),
            f"f32[{count}, 16]",
        )

    dense, apart = (4, ""), (8, "{strides=32:2}")
    assert kept(rows(*dense), rows(*apart)) == 2
    assert kept(rows(*dense), rows(*apart), rows(9, "{strides=48:3}"), rows(5, "")) == 2
    row = Given(("f32[16]",), ("%y = tanh(%0) : f32[16]",), "f32[16]")
    column = Given(("f32[32]{strides=4}",), ("%y = tanh(%0) : f32[32]",), "f32[32]")
    assert kept(row, column) == 2


def test_frames_of_an_open_length_that_estimates_are_too_short_for() -> None:
    """Windows of 400 samples, where an unknown length is taken for 256: the frames would be 0."""
    b = Builder()
    rng = np.random.default_rng(0)
    x, channels = b.input("x", "f32[1, 1, T]"), 1
    for kernel, stride in ((10, 5), *[(3, 2)] * 4, (2, 2), (2, 2)):
        weight = rng.standard_normal((8, channels, kernel)).astype(np.float32)
        window = {"strides": (stride,), "dilations": (1,), "pads": (0, 0)}
        x, channels = b.op("gelu", b.op("conv", x, weight, **window)), 8
    x = b.op("transpose", x, perm=(0, 2, 1))
    centred = b.op("sub", x, b.op("reduce_mean", x, axes=(2,)))
    scores = b.op("matmul", centred, b.op("transpose", centred, perm=(0, 2, 1)))
    b.output("y", b.op("matmul", b.op("softmax", scores, axis=2), centred))
    for optimize in BOUNDS:
        passed(clone_module(b.module()), optimize)
