"""Which dispatches of a GPU's program may run at the same time: the words that they touch, one by
one, for parts of memory and for whole programs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aot
from aot.analysis.memory.storage import ARENA, OUTPUTS, BufferSlice
from aot.builder import Builder
from aot.ir import dims
from aot.ir.dims import Dim
from aot.ir.graph import Module, Op
from aot.ir.types import DType, Layout, TensorType
from aot.link.lifetimes import Buffer
from aot.link.overlap import STATES, WORD_BYTES, Overlaps, Touch, are_apart, meet
from aot.link.program import decode
from aot.link.reader import read_module
from tests.support.fused_graphs import FusedGraph
from tests.support.overlap_graphs import fire

Group = list[list[Touch]]  # what each of its dispatches touches

# ---- parts of one memory ----


def words_of(start: Dim, type: TensorType, values: Mapping[str, int]) -> set[int]:
    """The words that the elements of a part lie in."""

    def number(dim: Dim) -> int:
        return dims.evaluate(dim, values)

    extents = [number(d) for d in type.dims]
    for dim, factor in (type.layout or Layout()).splits:
        extents.append(number(factor))
        extents[dim] = -(-extents[dim] // number(factor))
    places = np.zeros(1, np.int64)
    for extent, stride in zip(extents, type.physical_strides, strict=True):
        places = (places[:, None] + np.arange(extent) * number(stride)).reshape(-1)
    begins = number(start) + places * type.dtype.bytes
    last = begins + type.dtype.bytes - 1
    return {*(begins // WORD_BYTES).tolist(), *(last // WORD_BYTES).tolist()}


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, TensorType]:
    """Up to three dims; strides often are multiples of each other, as those of slices are."""
    dtype = draw(st.sampled_from((DType.U8, DType.F16, DType.F32, DType.I64)))
    extents = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    strides, step = [], 1
    for extent in reversed(extents):
        strides.append(step * draw(st.integers(1, 3)))
        step = draw(st.sampled_from((strides[-1] * extent, strides[-1], 4, 12)))
    order = draw(st.permutations(strides))
    layout = Layout(strides=tuple(order))
    start = dtype.bytes * draw(st.integers(0, 40 // dtype.bytes))
    return start, TensorType(dtype, extents, layout)


@settings(max_examples=400)
@given(parts(), parts())
def test_parts_that_are_apart_share_no_word(
    a: tuple[int, TensorType], b: tuple[int, TensorType]
) -> None:
    if are_apart(a, b):
        assert not words_of(*a, {}) & words_of(*b, {})


H, W, N = dims.symbol("H"), dims.symbol("W"), dims.symbol("N")


def channels_last(dtype: DType, channels: int, of: int, height: Dim, width: Dim) -> TensorType:
    row = dims.multiply(width, of)
    strides = (dims.multiply(height, row), 1, row, of)
    return TensorType(dtype, (N, channels, height, width), Layout(strides=strides))


@pytest.mark.parametrize(
    ("dtype", "first", "second", "begin", "wanted"),
    [
        (DType.F32, 8, 16, 8, True),
        (DType.F32, 9, 16, 8, False),  # one channel is in both
        (DType.F32, 8, 17, 8, False),  # the second reaches into the next position
        (DType.U8, 8, 16, 8, True),
        (DType.U8, 6, 18, 6, False),  # a word is in both
        (DType.F16, 8, 16, 8, True),
        (DType.F16, 7, 17, 7, False),
    ],
)
@pytest.mark.parametrize(("height", "width"), [(5, 6), (H, W), (1, 1)])
def test_channels_of_positions(
    dtype: DType, first: int, second: int, begin: int, wanted: bool, height: Dim, width: Dim
) -> None:
    a = 0, channels_last(dtype, first, 24, height, width)
    b = begin * dtype.bytes, channels_last(dtype, second, 24, height, width)
    assert are_apart(a, b) == wanted == are_apart(b, a)


def test_planes_of_an_open_batch() -> None:
    def planes(channels: int) -> TensorType:
        return TensorType(DType.F32, (N, channels, 5, 6), Layout(strides=(24 * 30, 30, 6, 1)))

    assert are_apart((0, planes(8)), (8 * 120, planes(16)))
    assert not are_apart((0, planes(9)), (8 * 120, planes(16)))
    assert not are_apart((0, planes(8)), (8 * 120, planes(17)))


def test_one_behind_the_other_at_open_places() -> None:
    rows = TensorType(DType.F32, (N, 7))
    bytes_ = TensorType(DType.U8, (N,))
    assert are_apart((0, rows), (rows.bytes, rows))
    assert not are_apart((0, rows), (dims.add(rows.bytes, -4), rows))
    assert not are_apart((0, bytes_), (bytes_.bytes, bytes_))  # they may share a word
    assert are_apart((0, bytes_), (dims.add(bytes_.bytes, 3), bytes_))


@given(*[st.tuples(st.integers(0, 12), parts(), st.booleans())] * 2)
def test_places_in_the_arena_meet_where_words_do(
    a: tuple[int, tuple[int, TensorType], bool], b: tuple[int, tuple[int, TensorType], bool]
) -> None:
    """Between two values of their own memory, from their first word to their last."""
    builder = Builder()
    roots = [builder.input(name, "f32[1]") for name in "xy"]
    touches, spans = [], []
    for root, (word, (_, type), is_written) in zip(roots, (a, b), strict=True):
        touches.append(Touch(BufferSlice(root, ARENA), type, is_written, None, 4 * word))
        words = words_of(4 * word, type, {})
        spans.append(set(range(min(words), max(words) + 1)))
    is_met = bool(spans[0] & spans[1]) and (a[2] or b[2])
    assert meet(*touches) == is_met == meet(*reversed(touches))


# ---- programs ----


@contextmanager
def recording(into: list[Group]) -> Iterator[None]:
    """Notes the groups of the programs that are emitted."""
    joins = Overlaps.joins

    def noting(self: Overlaps, op: Op) -> bool:
        touched = list(self._touched(op))
        is_free = joins(self, op)
        if is_free:
            into[-1].append(touched)
        else:
            into.append([touched])
        return is_free

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Overlaps, "joins", noting)
        yield


def compiled(module: Module, **options: Any) -> tuple[list[Group], bytes]:
    groups: list[Group] = []
    with recording(groups):
        made = aot.compile(module, targets=["vulkan-1.1"], **options)
    return groups, made.to_bytes()


def check_groups(groups: Sequence[Group], values: Mapping[str, int], seed: int) -> None:
    """No dispatch of a group writes a word that another one reads or writes, wherever the runtime
    may place buffers."""
    touched = [t for group in groups for dispatch in group for t in dispatch]
    buffers = {t.memory: None for t in touched if isinstance(t.memory, Buffer)}
    bases = placed(list(buffers), values, random.Random(seed))
    for group in groups:
        seen: list[dict[object, tuple[set[int], set[int]]]] = []
        for dispatch in group:
            spaces: dict[object, tuple[set[int], set[int]]] = {}
            for touch in dispatch:
                space, base = space_of(touch, bases)
                words = words_of(base, touch.type, values)
                spaces.setdefault(space, (set(), set()))[touch.is_written].update(words)
            for other in seen:
                for space in spaces.keys() & other.keys():
                    (read, written), (others_read, others_written) = spaces[space], other[space]
                    assert not written & (others_read | others_written)
                    assert not read & others_written
            seen.append(spaces)


def space_of(touch: Touch, bases: Mapping[Buffer, int]) -> tuple[object, Dim]:
    """An address space, and where in it a value begins."""
    buffer_slice = touch.buffer_slice
    if buffer_slice.binding == OUTPUTS:
        return buffer_slice.output, buffer_slice.offset_bytes
    if touch.start is not None:
        return "arena", touch.start
    if isinstance(touch.memory, Buffer):
        return "arena", dims.add(bases[touch.memory], buffer_slice.offset_bytes)
    return STATES if touch.memory == STATES else buffer_slice.root, buffer_slice.offset_bytes


def placed(
    buffers: list[Buffer], values: Mapping[str, int], chance: random.Random
) -> dict[Buffer, int]:
    """Some placing in which buffers that live at one position do not overlap."""
    order = chance.sample(buffers, len(buffers))
    found: dict[Buffer, int] = {}
    for buffer in order:
        size = dims.evaluate(buffer.size, values)
        live = [
            (start, start + dims.evaluate(b.size, values))
            for b, start in found.items()
            if b.first <= buffer.last and buffer.first <= b.last
        ]
        ends = [0, *(-(-end // 64) * 64 for _, end in live)]
        fits = [e for e in ends if all(e + size <= begin or end <= e for begin, end in live)]
        found[buffer] = chance.choice(fits)
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(4, 24), st.booleans())
def test_dispatches_of_random_programs(data: st.DataObject, size: int, fusion: bool) -> None:
    def choose(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    groups, made = compiled(
        FusedGraph(choose, size).b.module(), disable=() if fusion else ("fusion",)
    )
    for batch in (1, 3):
        check_groups(groups, {"N": batch}, size + batch)
    (variant,) = read_module(made).variants
    names = [i.name for i in decode(variant.entry_points[0].program.code)]
    assert names.count("BESIDE") == sum(len(group) - 1 for group in groups)


@pytest.mark.parametrize("batch", [1, 2, "N"])
def test_branches_run_beside_each_other(batch: str | int) -> None:
    groups, _ = compiled(fire(batch))
    assert [len(group) for group in groups] == [1, 2, 1, 2]
    check_groups(groups, {"N": 3}, 0)


def test_a_chain_has_no_groups() -> None:
    b = Builder()
    value = b.input("x", "f32[N, 24]")
    for seed in range(4):
        w = np.random.default_rng(seed).standard_normal((24, 24)).astype(np.float32)
        value = b.op("softmax", b.op("matmul", value, b.constant(w)), axis=1)
    b.output("y", value)
    groups, _ = compiled(b.module())
    assert len(groups) > 4
    assert {len(group) for group in groups} == {1}


def test_memory_that_is_used_again_keeps_the_order() -> None:
    """Two chains, one after the other: what the second one makes first may lie where a value of the
    first one lay, which the dispatch before it reads."""
    b = Builder()
    ends = []
    for name in ("x", "z"):
        value = b.input(name, "f32[N, 256]")
        for seed in range(3):
            w = np.random.default_rng(seed).standard_normal((256, 256)).astype(np.float32)
            value = b.op("matmul", value, b.constant(w))
        ends.append(value)
    b.output("y", ends[0])
    b.output("v", ends[1])
    groups, _ = compiled(b.module())
    assert [len(group) for group in groups] == [1] * 6
    check_groups(groups, {"N": 2}, 1)


def test_a_cpu_s_program_says_nothing() -> None:
    made = aot.compile(fire(), targets=["x86-64-v3"]).to_bytes()
    (variant,) = read_module(made).variants
    names = {i.name for i in decode(variant.entry_points[0].program.code)}
    assert "DISPATCH" in names
    assert "BESIDE" not in names
