"""Index maps: what they do to elements, their normal form, composition and inverses, in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.ir.index_map import (
    Broadcast,
    IndexMap,
    Reshape,
    Slice,
    Step,
    Transpose,
    make_map,
    step_dims,
    transposed,
)
from aot.ir.mapped_operand import MappedOperand
from aot.ir.types import DType, TensorType
from aot.ops.layout_rules import cost, is_free, reshape
from aot.ops.movement import RESHAPE

SHAPES = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@st.composite
def splits(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Dims of `count` elements."""
    dims: list[int] = []
    while count > 1 and draw(st.booleans()):
        factor = draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
        dims.append(factor)
        count //= factor
    return (*dims, count)


@st.composite
def steps_on(draw: st.DrawFn, dims: tuple[int, ...], is_exact: bool = False) -> list[Step]:
    """Steps that fit one behind the other; exact ones neither lose nor repeat elements."""
    made: list[Step] = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from((0, 1) if is_exact else (0, 1, 2, 3)))
        step: Step
        if kind == 0:
            step = Transpose(tuple(draw(st.permutations(range(len(dims))))))
        elif kind == 1:
            step = Reshape(draw(splits(int(np.prod(dims)))))
        elif kind == 2:
            starts = tuple(draw(st.integers(0, n - 1)) for n in dims)
            stops = tuple(draw(st.integers(s + 1, n)) for s, n in zip(starts, dims, strict=True))
            step = Slice(starts, stops, tuple(draw(st.integers(1, 3)) for _ in dims))
        else:
            lead = draw(st.lists(st.integers(1, 3), max_size=1))
            step = Broadcast((*lead, *(n if n != 1 else draw(st.integers(1, 3)) for n in dims)))
        if np.prod(step_dims(step, dims)) > 2000:
            continue
        made.append(step)
        dims = step_dims(step, dims)  # type: ignore[assignment]
    return made


def elements(dims: tuple[int, ...]) -> np.ndarray:
    return np.arange(int(np.prod(dims))).reshape(dims)


@given(SHAPES, st.data())
def test_the_normal_form_does_what_the_steps_do(dims: tuple[int, ...], data: st.DataObject) -> None:
    steps = data.draw(steps_on(dims))
    expected = elements(dims)
    for step in steps:
        expected = IndexMap((step,)).apply(expected)
    whole = make_map(steps, dims)
    np.testing.assert_array_equal(whole.apply(elements(dims)), expected)
    assert whole.result_dims(dims) == expected.shape
    assert make_map(whole.steps, dims) == whole
    assert IndexMap.of_attr(whole.to_attr()) == whole


@settings(max_examples=300)
@given(st.sampled_from(((6, 4), (2, 12), (4, 6), (24,), (3, 8), (2, 3, 4))), st.data())
def test_transposes_with_reshapes_between_are_one(
    dims: tuple[int, ...], data: st.DataObject
) -> None:
    """Three of them, on dims that are split and joined on the way."""
    steps: list[Step] = []
    array = elements(dims)
    for _ in range(3):
        split = Reshape(data.draw(st.sampled_from(((2, 3, 4), (6, 2, 2), (4, 3, 2), (2, 3, 2, 2)))))
        steps.append(split)
        steps.append(Transpose(tuple(data.draw(st.permutations(range(len(split.dims)))))))
        array = IndexMap(tuple(steps[-2:])).apply(array)
    whole = make_map(steps, dims)
    np.testing.assert_array_equal(whole.apply(elements(dims)), array)
    back = whole.inverse(dims)
    assert back is not None and whole.then(back, dims).is_identity


@pytest.mark.parametrize(
    ("dims", "steps", "expected"),
    [
        # attention's keys: heads out, rows and columns swapped, with batch and heads as one
        (
            (2, 5, 3, 4),
            (Transpose((0, 2, 1, 3)), Reshape((6, 5, 4)), Transpose((0, 2, 1)),
             Reshape((2, 3, 4, 5))),
            (Transpose((0, 2, 3, 1)),),
        ),
        # dims stay as they are where that needs no reshape first
        (
            (2, 3, 4, 5),
            (Transpose((2, 3, 0, 1)), Reshape((20, 6)), Transpose((1, 0)), Reshape((6, 4, 5)),
             Transpose((1, 2, 0))),
            (Transpose((2, 3, 0, 1)), Reshape((4, 5, 6))),
        ),
        # pieces that stay neighbours are not told apart
        (
            (6, 20),
            (Reshape((2, 3, 4, 5)), Transpose((2, 3, 0, 1)), Reshape((4, 30)), Transpose((1, 0))),
            (Reshape((24, 5)), Transpose((1, 0)), Reshape((30, 4))),
        ),
        # 4 and 6 share no pieces: three steps stay
        (
            (4, 6),
            (Transpose((1, 0)), Reshape((4, 6)), Transpose((1, 0))),
            (Transpose((1, 0)), Reshape((4, 6)), Transpose((1, 0))),
        ),
    ],
)  # fmt: skip
def test_one_transpose_says_it(
    dims: tuple[int, ...], steps: tuple[Step, ...], expected: tuple[Step, ...]
) -> None:
    assert make_map(steps, dims).steps == expected


@given(SHAPES, st.data())
def test_a_map_and_its_inverse_are_nothing(dims: tuple[int, ...], data: st.DataObject) -> None:
    whole = make_map(data.draw(steps_on(dims, is_exact=True)), dims)
    back = whole.inverse(dims)
    assert back is not None
    assert whole.then(back, dims).is_identity
    np.testing.assert_array_equal(back.apply(whole.apply(elements(dims))), elements(dims))


@given(SHAPES, st.data())
def test_composing_is_applying_one_after_the_other(
    dims: tuple[int, ...], data: st.DataObject
) -> None:
    first = make_map(data.draw(steps_on(dims)), dims)
    between = first.result_dims(dims)
    second = make_map(data.draw(steps_on(tuple(map(int, between)))), between)
    both = first.then(second, dims)
    np.testing.assert_array_equal(
        both.apply(elements(dims)), second.apply(first.apply(elements(dims)))
    )


@given(SHAPES, st.data())
def test_what_is_free_moves_nothing(dims: tuple[int, ...], data: st.DataObject) -> None:
    map = make_map(data.draw(steps_on(dims, is_exact=True)), dims)
    flat = map.apply(elements(dims)).reshape(-1)
    if is_free(map, dims):
        np.testing.assert_array_equal(flat, elements(dims).reshape(-1))
    seen = MappedOperand(TensorType(DType.F32, dims), map)
    assert (cost(seen, map) == 0) == is_free(map, dims)


@given(SHAPES, st.data())
def test_a_reshape_before_a_transpose_is_the_one_after_it(
    dims: tuple[int, ...], data: st.DataObject
) -> None:
    perm = tuple(data.draw(st.permutations(range(len(dims)))))
    seen = MappedOperand(TensorType(DType.F32, dims), transposed(perm))
    shape = data.draw(splits(int(np.prod(dims))))
    answer = reshape(RESHAPE.call([TensorType(DType.F32, seen.dims)], {"shape": shape}), [seen])
    assert answer is not None
    array = elements(dims)
    if not answer.is_removed:
        array = array.reshape(answer.attrs.get("shape", shape))  # type: ignore[arg-type]
    found = answer.results[0].apply(array)
    np.testing.assert_array_equal(found, seen.map.apply(elements(dims)).reshape(shape))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "7 is no list of steps"),
        ((("turn", (0,)),), r"\('turn', \(0,\)\) is no step: expected one of transpose, reshape"),
        ((("slice", (0,), (1,)),), "slice takes starts and stops and steps"),
    ],
)
def test_what_is_no_map_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IndexMap.of_attr(value)
