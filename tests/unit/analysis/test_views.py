"""Which movements are free: `view_type` against numpy's strides, symbolic dims, `is_view`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.analysis.memory.views import canonical, is_view, memory_order, view_offset, view_type
from aot.frontends.text import import_text
from aot.ir.dim_parser import parse
from aot.ir.dims import Dim, evaluate, substitute
from aot.ir.index_map import Broadcast, IndexMap, Reshape, Slice, Step, Transpose, make_map
from aot.ir.types import DType, Layout, TensorType
from tests.support.lowering import element_numbers

Array = np.ndarray[Any, Any]


def type_of(text: str) -> TensorType:
    """The type that `text` names."""
    source = f'func @main(%x: {text}) -> ("y") {{\n  return(%x)\n}}\n'
    return import_text(source).main.inputs[0].type


def numbers(type: TensorType) -> Array:
    """Where each element of a static type lies."""
    return element_numbers(type, {})


@st.composite
def layouts(draw: st.DrawFn) -> TensorType:
    """A type whose elements are dense in some order, or further apart."""
    dims = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    order = tuple(draw(st.permutations(range(len(dims)))))
    if draw(st.booleans()):
        return TensorType(DType.F32, dims, Layout(order=order))
    strides, step = [0] * len(dims), 1
    for d in reversed(order):
        strides[d] = step
        step *= dims[d] * draw(st.sampled_from([1, 1, 1, 2]))
    return TensorType(DType.F32, dims, Layout(strides=tuple(strides)))


@st.composite
def steps(draw: st.DrawFn, dims: tuple[int, ...]) -> Step:
    kind = draw(st.sampled_from(["transpose", "reshape", "slice"]))
    if kind == "transpose":
        return Transpose(tuple(draw(st.permutations(range(len(dims))))))
    if kind == "slice":
        starts = tuple(draw(st.integers(0, n - 1)) for n in dims)
        stops = tuple(draw(st.integers(a + 1, n)) for a, n in zip(starts, dims, strict=True))
        return Slice(starts, stops, tuple(draw(st.integers(1, 2)) for _ in dims))
    left = int(np.prod(dims))
    fresh: list[int] = []
    while left > 1 and len(fresh) < 4:
        fresh.append(draw(st.sampled_from([f for f in range(1, left + 1) if left % f == 0])))
        left //= fresh[-1]
    return Reshape((*fresh, left))


@given(st.data())
def test_a_view_has_its_elements_where_numpy_has_them(data: st.DataObject) -> None:
    type = data.draw(layouts())
    map, dims = IndexMap(), type.shape
    for _ in range(data.draw(st.integers(1, 3))):
        step = data.draw(steps(dims))
        map = make_map((*map.steps, step), type.dims)
        dims = tuple(int(d) for d in IndexMap((step,)).result_dims(dims))
    seen = view_type(map, type)
    if seen is None:
        assert not _has_strides(numbers(type), map)
        return
    assert seen.dims == dims
    assert seen == canonical(seen)
    wanted = map.apply(numbers(type))
    np.testing.assert_array_equal(numbers(seen) + int(view_offset(map, type)), wanted)


def _has_strides(places: Array, map: IndexMap) -> bool:
    """Whether one stride a dim reaches the elements after every step of `map`."""
    for step in map.steps:
        places = IndexMap((step,)).apply(places)
        origin = places[(0,) * places.ndim]
        made = np.full(places.shape, origin)
        for axis, extent in enumerate(places.shape):
            following = tuple(int(d == axis) for d in range(places.ndim))
            stride = places[following] - origin if extent > 1 else 0
            shape = [-1 if d == axis else 1 for d in range(places.ndim)]
            made = made + (np.arange(extent) * stride).reshape(shape)
        if not np.array_equal(made, places):
            return False
    return True


@given(layouts())
def test_canonical_types_place_elements_alike(type: TensorType) -> None:
    made = canonical(type)
    np.testing.assert_array_equal(numbers(made), numbers(type))
    assert canonical(made) == made
    flat = numbers(type).reshape(-1)
    dense = bool(np.array_equal(flat, np.arange(flat.size)))
    assert (made.layout is None) == dense


def dims(*values: int | str) -> tuple[Dim, ...]:
    return tuple(parse(v) if isinstance(v, str) else v for v in values)


VIEWS = [
    (
        "f32[N, 64, H, W]{order=0:2:3:1}",
        Reshape(dims("N", 64, "H*W")),
        "f32[N, 64, H*W]{order=0:2:1}",
    ),
    ("f32[N, 64, H, W]", Reshape(dims("N", 64, "H*W")), "f32[N, 64, H*W]"),
    (
        "f32[N, 64, H, W]{order=0:2:3:1}",
        Reshape(dims("N", 2, 32, "H", "W")),
        "f32[N, 2, 32, H, W]{order=0:3:4:1:2}",
    ),
    ("f32[N, H, W, 3]", Transpose((0, 3, 1, 2)), "f32[N, 3, H, W]{order=0:2:3:1}"),
    ("f32[N, 3, H, W]{order=0:2:3:1}", Transpose((0, 2, 3, 1)), "f32[N, H, W, 3]"),
    ("f32[1, 64, 1, 1]{order=0:2:3:1}", Reshape((1, 64)), "f32[1, 64]"),
    ("f32[N, 64, H, W]{order=0:2:3:1}", Reshape(dims("N", "64*H*W")), None),
    ("f32[N, S, 384]", Reshape(dims("N", "S", 12, 32)), "f32[N, S, 12, 32]"),
    (
        "f32[N, S, 12, 32]",
        Transpose((0, 2, 1, 3)),
        "f32[N, 12, S, 32]{order=0:2:1:3}",
    ),
    (
        "f32[N, 64, H, W]",
        Slice((0, 16, 0, 0), dims("N", 32, "H", "W"), (1, 1, 1, 1)),
        "f32[N, 16, H, W]{strides=64*H*W:H*W:W:1}",
    ),
    (
        "f32[N, 64, H, W]{order=0:2:3:1}",
        Slice((0, 16, 0, 0), dims("N", 32, "H", "W"), (1, 1, 1, 1)),
        "f32[N, 16, H, W]{order=0:2:3:1 strides=64*H*W:1:64*W:64}",
    ),
    ("f32[4, 6]", Slice((1, 0), (3, 6), (1, 1)), "f32[2, 6]"),
    ("f32[4, 6]", Slice((3, 0), (0, 6), (-1, 1)), None),
    ("f32[1, 6]", Broadcast((4, 6)), None),
    ("f32[0, 6]{order=1:0}", Reshape((2, 0, 3)), "f32[2, 0, 3]"),
]


@pytest.mark.parametrize(("operand", "step", "result"), VIEWS)
def test_views(operand: str, step: Step, result: str | None) -> None:
    found = view_type(IndexMap((step,)), type_of(operand))
    assert (None if found is None else str(found)) == result


@given(st.integers(2, 5), st.integers(2, 5))
def test_symbolic_views_agree_with_their_values(h: int, w: int) -> None:
    type = type_of("f32[2, 6, H, W]{order=0:2:3:1}")
    values = {"H": h, "W": w}
    static = TensorType(DType.F32, (2, 6, h, w), type.layout)
    for dims in ((2, 3, 2, *type.dims[2:]), (2, 6, type.dims[2] * type.dims[3])):
        seen = view_type(IndexMap((Reshape(dims),)), type)
        assert seen is not None
        known = IndexMap((Reshape(tuple(substitute(d, values) for d in dims)),))
        wanted = view_type(known, static)
        assert wanted is not None
        assert [evaluate(s, values) for s in seen.strides] == list(wanted.strides)


@pytest.mark.parametrize(
    ("operand", "op", "is_free"),
    [
        ("f32[2, 5, 5, 3]", "transpose(%x) {perm = [0, 3, 1, 2]} : f32[2, 3, 5, 5]", False),
        (
            "f32[2, 5, 5, 3]",
            "transpose(%x) {perm = [0, 3, 1, 2]} : f32[2, 3, 5, 5]{order=0:2:3:1}",
            True,
        ),
        ("f32[2, 1, 1, 3]", "transpose(%x) {perm = [0, 3, 1, 2]} : f32[2, 3, 1, 1]", True),
        ("f32[2, 3, 4]", "reshape(%x) {shape = [6, 4]} : f32[6, 4]", True),
        ("f32[2, 3, 4]{order=0:2:1}", "reshape(%x) {shape = [6, 4]} : f32[6, 4]", False),
        ("f32[2, 3, 4]{order=0:2:1}", "reshape(%x) {shape = [2, 12]} : f32[2, 12]", False),
        ("f32[1, 3, 4]{order=1:0:2}", "reshape(%x) {shape = [3, 4]} : f32[3, 4]", True),
        ("f32[3, 4]", "copy(%x) {layout = {}} : f32[3, 4]", False),
        ("f32[3, 4]", "relu(%x) : f32[3, 4]", False),
    ],
)
def test_a_view_is_told_by_its_types(operand: str, op: str, is_free: bool) -> None:
    module = import_text(f'func @main(%x: {operand}) -> ("y") {{\n  %0 = {op}\n  return(%0)\n}}')
    made = module.main.block.first
    assert made is not None
    assert is_view(made) == is_free


def test_memory_order() -> None:
    assert memory_order(type_of("f32[2, 3, 4]")) == (0, 1, 2)
    assert memory_order(type_of("f32[2, 3, 4]{order=0:2:1}")) == (0, 2, 1)
    assert memory_order(type_of("f32[2, N, 4]{order=0:2:1 strides=4*N:1:N}")) == (0, 2, 1)
    assert memory_order(type_of("f32[2, 30]{splits=1/16 order=1:0:2}")) == (1, 0)


def test_dims_join_to_one_in_pieces_where_that_is_asked_for() -> None:
    shuffled = type_of("f32[2, 3, 4]{order=0:2:1}")
    join = IndexMap((Reshape((2, 12)),))
    assert view_type(join, shuffled) is None
    seen = view_type(join, shuffled, may_split=True)
    assert seen is not None
    assert str(seen) == "f32[2, 12]{splits=1/4 order=0:2:1}"
    assert (numbers(seen) == numbers(shuffled).reshape(2, 12)).all()


def test_a_dim_in_pieces_is_cut_where_the_pieces_are_only() -> None:
    pieces = type_of("f32[2, 12]{splits=1/4 order=0:2:1}")
    cut = view_type(IndexMap((Reshape((2, 3, 4)),)), pieces)
    assert str(cut) == "f32[2, 3, 4]{order=0:2:1}"
    assert view_type(IndexMap((Reshape((2, 4, 3)),)), pieces) is None
    assert view_type(IndexMap((Slice((0, 0), (2, 4), (1, 1)),)), pieces) is None
    half = view_type(IndexMap((Slice((1, 0), (2, 12), (1, 1)),)), pieces)
    assert half is not None
    assert (numbers(half) == numbers(pieces)[:1]).all()
    assert view_offset(IndexMap((Slice((1, 0), (2, 12), (1, 1)),)), pieces) == 12
