"""Models of one operator that moves or chooses elements; see `tflite_cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.tflite_cases import Making, case

I32 = np.int32
DTYPES = (np.float32, np.int8, I32)


def _pair(m: Making, dtype: Any, shape: Sequence[int], result: Sequence[int]) -> tuple[int, int]:
    """An input and an output of the same kind."""
    how: dict[str, Any] = {} if np.dtype(dtype).itemsize == 4 else {"scale": 0.03, "zero": 5}
    return m.input(shape, dtype, -9, 9, **how), m.tensor(result, dtype, **how)


def ints(m: Making, *numbers: int) -> int:
    """A constant of shapes or positions."""
    return m.constant(np.array(numbers, I32))


def _simple() -> None:
    """Operators of an input, constants and options."""
    table: list[tuple[str, Any, Any, Any, str | None, dict[str, Any]]] = [
        ("RESHAPE", (2, 3, 4), (4, 6), [[4, 6]], "ReshapeOptions", {}),
        ("RESHAPE", (2, 3, 4), (6, 4), [[-1, 4]], "ReshapeOptions", {}),
        ("RESHAPE", (2, 3, 4), (24,), [], "ReshapeOptions", {"new_shape": [24]}),
        ("SQUEEZE", (1, 3, 1, 4), (3, 4), [], "SqueezeOptions", {}),
        ("SQUEEZE", (1, 3, 1, 4), (1, 3, 4), [], "SqueezeOptions", {"squeeze_dims": [-2]}),
        ("EXPAND_DIMS", (3, 4), (3, 1, 4), [1], "ExpandDimsOptions", {}),
        ("EXPAND_DIMS", (3, 4), (3, 4, 1), [-1], "ExpandDimsOptions", {}),
        ("TRANSPOSE", (2, 3, 4, 5), (5, 2, 4, 3), [[3, 0, 2, 1]], "TransposeOptions", {}),
        ("SLICE", (4, 5, 6), (2, 5, 3), [[1, 0, 2], [2, -1, 3]], "SliceOptions", {}),
        ("PAD", (2, 3, 4), (2, 6, 4), [[[0, 0], [1, 2], [0, 0]]], "PadOptions", {}),
        ("MIRROR_PAD", (3, 4), (6, 7), [[[1, 2], [2, 1]]], "MirrorPadOptions", {"mode": 0}),
        ("MIRROR_PAD", (3, 4), (6, 7), [[[1, 2], [2, 1]]], "MirrorPadOptions", {"mode": 1}),
        ("REVERSE_V2", (3, 4, 5), (3, 4, 5), [[1]], "ReverseV2Options", {}),
        ("TILE", (2, 3), (4, 9), [[2, 3]], "TileOptions", {}),
        ("BROADCAST_TO", (3, 1), (2, 3, 4), [[2, 3, 4]], "BroadcastToOptions", {}),
        (
            "DEPTH_TO_SPACE",
            (1, 2, 3, 12),
            (1, 4, 6, 3),
            [],
            "DepthToSpaceOptions",
            {"block_size": 2},
        ),
        (
            "SPACE_TO_DEPTH",
            (1, 4, 6, 3),
            (1, 2, 3, 12),
            [],
            "SpaceToDepthOptions",
            {"block_size": 2},
        ),
        (
            "SPACE_TO_BATCH_ND",
            (2, 4, 5, 3),
            (12, 2, 3, 3),
            [[2, 3], [[0, 0], [1, 3]]],
            "SpaceToBatchNDOptions",
            {},
        ),
        (
            "BATCH_TO_SPACE_ND",
            (12, 2, 3, 3),
            (2, 4, 6, 3),
            [[2, 3], [[0, 0], [1, 2]]],
            "BatchToSpaceNDOptions",
            {},
        ),
        ("GATHER", (4, 5, 6), (4, 3, 6), [[3, 0, 2]], "GatherOptions", {"axis": 1}),
        ("GATHER", (4, 5), (2, 2, 5), [[[3, 0], [1, 1]]], "GatherOptions", {}),
        ("GATHER_ND", (4, 5, 6), (2, 6), [[[3, 0], [1, 4]]], "GatherNdOptions", {}),
        ("GATHER_ND", (4, 5), (3, 5), [[[3], [1], [0]]], "GatherNdOptions", {}),
    ]
    for number, (name, shape, result, constants, options, fields) in enumerate(table):
        for dtype in DTYPES:
            if dtype is I32 and name.startswith("MIRROR"):
                continue

            @case(f"{name}-{np.dtype(dtype).name}-{number}", steps=0)
            def _(
                m: Making,
                name: str = name,
                dtype: Any = dtype,
                shape: Any = shape,
                result: Any = result,
                constants: Any = constants,
                options: str | None = options,
                fields: Any = fields,
            ) -> int:
                x, y = _pair(m, dtype, shape, result)
                own = [m.constant(np.array(c, I32)) for c in constants]
                m.op(name, [x, *own], [y], options, **fields)
                return y


_simple()


def _strided() -> None:
    table: list[tuple[Any, Any, Any, dict[str, int], Any]] = [
        ([1, 0, 2], [3, 5, 6], [1, 2, 1], {}, (2, 3, 4)),
        ([1, 0, 2], [3, 5, 6], [1, 2, 1], {"begin_mask": 1, "end_mask": 4}, (3, 3, 4)),
        ([-1, 3, 0], [-4, 0, 6], [-1, -1, 3], {}, (3, 3, 2)),
        ([0, 0, 0], [0, 0, 0], [-1, 1, -2], {"begin_mask": 7, "end_mask": 7}, (4, 5, 3)),
        ([2, 0, 1], [0, 5, 4], [1, 1, 1], {"shrink_axis_mask": 1}, (5, 3)),
        ([0, 1, -1], [0, 3, 0], [1, 1, 1], {"shrink_axis_mask": 5, "begin_mask": 1}, (2,)),
        ([1, 0], [3, 0], [1, 1], {"ellipsis_mask": 2}, (2, 5, 6)),
        ([0, 2], [0, 3], [1, 1], {"ellipsis_mask": 1}, (4, 5, 1)),
        ([1, 0, 1], [3, 0, 4], [1, 1, 1], {"new_axis_mask": 2}, (2, 1, 3, 6)),
        ([1], [9], [2], {}, (2, 5, 6)),
    ]
    for number, (begin, end, steps, masks, result) in enumerate(table):

        @case(f"STRIDED_SLICE-{number}", steps=0)
        def _(
            m: Making,
            begin: Any = begin,
            end: Any = end,
            steps: Any = steps,
            masks: Any = masks,
            result: Any = result,
        ) -> int:
            x, y = m.input((4, 5, 6)), m.tensor(result)
            own = [ints(m, *v) for v in (begin, end, steps)]
            m.op("STRIDED_SLICE", [x, *own], [y], "StridedSliceOptions", **masks)
            return y


_strided()


@case("PADV2")
def _(m: Making) -> int:
    x, y = m.input((2, 3)), m.tensor((4, 6))
    pads, value = m.constant(np.array([[1, 1], [0, 3]], I32)), m.constant(np.float32(2.5))
    m.op("PADV2", [x, pads, value], [y], "PadV2Options")
    return y


def _joined() -> None:
    for dtype in DTYPES:
        for axis in (0, 1, -1):

            @case(f"CONCATENATION-{np.dtype(dtype).name}-{axis}", steps=0)
            def _(m: Making, dtype: Any = dtype, axis: int = axis) -> int:
                shapes = [[2, 3, 4], [2, 3, 4]]
                shapes[1][axis] = 5
                result = [2, 3, 4]
                result[axis] += 5
                a, y = _pair(m, dtype, shapes[0], result)
                b, _ = _pair(m, dtype, shapes[1], result)
                m.op("CONCATENATION", [a, b], [y], "ConcatenationOptions", axis=axis)
                return y

        @case(f"PACK-{np.dtype(dtype).name}", steps=0)
        def _(m: Making, dtype: Any = dtype) -> int:
            a, y = _pair(m, dtype, (2, 3), (2, 3, 2))
            b, _ = _pair(m, dtype, (2, 3), (2, 3))
            m.op("PACK", [a, b], [y], "PackOptions", axis=-1, values_count=2)
            return y

        @case(f"UNPACK-{np.dtype(dtype).name}", steps=0)
        def _(m: Making, dtype: Any = dtype) -> Sequence[int]:
            a, y = _pair(m, dtype, (2, 3, 2), (2, 2))
            more = [_pair(m, dtype, (1,), (2, 2))[1] for _ in range(2)]
            m.op("UNPACK", [a], [y, *more], "UnpackOptions", axis=1, num=3)
            return y, *more

        @case(f"SPLIT-{np.dtype(dtype).name}", steps=0)
        def _(m: Making, dtype: Any = dtype) -> Sequence[int]:
            a, y = _pair(m, dtype, (2, 6), (2, 3))
            _, z = _pair(m, dtype, (1,), (2, 3))
            m.op("SPLIT", [ints(m, 1), a], [y, z], "SplitOptions", num_splits=2)
            return y, z

        @case(f"SPLIT_V-{np.dtype(dtype).name}", steps=0)
        def _(m: Making, dtype: Any = dtype) -> Sequence[int]:
            a, y = _pair(m, dtype, (2, 6), (2, 2))
            _, z = _pair(m, dtype, (1,), (2, 4))
            own = [ints(m, 2, -1), m.constant(np.array(1, I32))]
            m.op("SPLIT_V", [a, *own], [y, z], "SplitVOptions", num_splits=2)
            return y, z


_joined()


@case("CONCATENATION-rescaled")
def _(m: Making) -> int:
    a = m.input((2, 20), np.uint8, scale=0.02, zero=120)
    b = m.input((2, 20), np.uint8, scale=0.03, zero=100)
    y = m.tensor((2, 40), np.uint8, scale=0.03, zero=100)
    m.op("CONCATENATION", [a, b], [y], "ConcatenationOptions", axis=1)
    return y


@case("SHAPE")
def _(m: Making) -> int:
    x, y = m.input((2, 3, 4)), m.tensor((3,), I32)
    m.op("SHAPE", [x], [y], "ShapeOptions", out_type=2)
    return y


@case("RANK")
def _(m: Making) -> int:
    x, y = m.input((2, 3, 4)), m.tensor((), I32)
    m.op("RANK", [x], [y], "RankOptions")
    return y


@case("FILL")
def _(m: Making) -> int:
    y = m.tensor((2, 3))
    m.op("FILL", [ints(m, 2, 3), m.input(())], [y], "FillOptions")
    return y


@case("RANGE")
def _(m: Making) -> int:
    x, r, y = m.input((4,)), m.tensor((4,)), m.tensor((4,))
    own = [m.constant(np.float32(v)) for v in (1, 3, 0.5)]
    m.op("RANGE", own, [r], "RangeOptions")
    m.op("ADD", [x, r], [y], "AddOptions")
    return y


@case("BROADCAST_ARGS")
def _(m: Making) -> int:
    shape, y = m.tensor((3,), I32), m.tensor((2, 3, 4))
    m.op("BROADCAST_ARGS", [ints(m, 2, 3, 1), ints(m, 3, 4)], [shape])
    m.op("BROADCAST_TO", [m.input((3, 1)), shape], [y], "BroadcastToOptions")
    return y


@case("GATHER-batched")
def _(m: Making) -> int:
    x, y = m.input((2, 3, 4, 5)), m.tensor((2, 3, 2, 2, 5))
    at = m.constant(m.random.randint(0, 4, (2, 3, 2, 2)).astype(I32))
    m.op("GATHER", [x, at], [y], "GatherOptions", axis=2, batch_dims=2)
    return y


@case("GATHER-batched-inner")
def _(m: Making) -> int:
    x, y = m.input((2, 3, 4)), m.tensor((2, 3, 2))
    at = m.constant(m.random.randint(0, 4, (2, 2)).astype(I32))
    m.op("GATHER", [x, at], [y], "GatherOptions", axis=2, batch_dims=1)
    return y


@case("EMBEDDING_LOOKUP")
def _(m: Making) -> int:
    at, y = m.input((4,), I32, data=np.array([3, 0, 5, 5])), m.tensor((4, 3))
    m.op("EMBEDDING_LOOKUP", [at, m.constant(m.numbers((6, 3)))], [y])
    return y


@case("EMBEDDING_LOOKUP-i8")
def _(m: Making) -> int:
    at, y = m.input((4,), I32, data=np.array([3, 0, 5, 5])), m.tensor((4, 3))
    rows = m.constant(m.numbers((6, 3), np.int8), scale=0.02)
    m.op("EMBEDDING_LOOKUP", [at, rows], [y])
    return y


@case("SCATTER_ND")
def _(m: Making) -> int:
    x, y = m.input((3, 4)), m.tensor((5, 4))
    at = m.constant(np.array([[3], [1], [3]], I32))
    m.op("SCATTER_ND", [at, x, ints(m, 5, 4)], [y], "ScatterNdOptions")
    return y


@case("DYNAMIC_UPDATE_SLICE")
def _(m: Making) -> int:
    x, u, y = m.input((5, 6)), m.input((2, 3)), m.tensor((5, 6))
    at = m.input((2,), I32, data=np.array([2, 5]))
    m.op("DYNAMIC_UPDATE_SLICE", [x, u, at], [y], "DynamicUpdateSliceOptions")
    return y


for _axis in (-1, 0, 1):

    @case(f"ONE_HOT-{_axis}")
    def _(m: Making, axis: int = _axis) -> int:
        shape = [(3, 2, 4), (4, 3, 2), (3, 4, 2)][axis + 1 if axis >= 0 else 0]
        at, y = m.input((3, 2), I32, data=[[0, 3], [2, 9], [1, 1]]), m.tensor(shape)
        own = [m.constant(np.array(v)) for v in (I32(4), np.float32(2), np.float32(-1))]
        m.op("ONE_HOT", [at, *own], [y], "OneHotOptions", axis=axis)
        return y


@case("BUCKETIZE")
def _(m: Making) -> int:
    x, y = m.input((3, 8), data=m.numbers((3, 8), I32, -4, 4)), m.tensor((3, 8), I32)
    m.op("BUCKETIZE", [x], [y], "BucketizeOptions", boundaries=[-2.0, 0.0, 0.5, 3.0])
    return y


@case("WHERE")
def _(m: Making) -> int:
    x, y = m.input((3, 4), np.bool_), m.tensor((0, 2), np.int64, signature=(-1, 2))
    m.op("WHERE", [x], [y], "WhereOptions")
    return y


@case("MATRIX_DIAG")
def _(m: Making) -> int:
    x, y = m.input((2, 3)), m.tensor((2, 3, 3))
    m.op("MATRIX_DIAG", [x], [y], "MatrixDiagOptions")
    return y


@case("MATRIX_SET_DIAG")
def _(m: Making) -> int:
    x, d, y = m.input((2, 4, 3)), m.input((2, 3)), m.tensor((2, 4, 3))
    m.op("MATRIX_SET_DIAG", [x, d], [y], "MatrixSetDiagOptions")
    return y


@case("SPARSE_TO_DENSE")
def _(m: Making) -> int:
    values, y = m.input((2,)), m.tensor((4, 3))
    at, rest = m.constant(np.array([[0, 1], [3, 2]], I32)), m.constant(np.float32(0.5))
    m.op("SPARSE_TO_DENSE", [at, ints(m, 4, 3), values, rest], [y], "SparseToDenseOptions")
    return y


@case("SEGMENT_SUM")
def _(m: Making) -> int:
    x, y = m.input((5, 3)), m.tensor((3, 3))
    m.op("SEGMENT_SUM", [x, ints(m, 0, 0, 1, 2, 2)], [y], "SegmentSumOptions")
    return y


for _name in ("SUM", "PROD", "MAX", "MIN"):

    @case(f"UNSORTED_SEGMENT_{_name}")
    def _(m: Making, name: str = _name) -> int:
        x, y = m.input((5, 3)), m.tensor((4, 3))
        own = [ints(m, 2, 0, 2, 3, 0), m.constant(np.array(4, I32))]
        options = f"UnsortedSegment{name.title()}Options"
        m.op(f"UNSORTED_SEGMENT_{name}", [x, *own], [y], options)
        return y


@case("REVERSE_SEQUENCE")
def _(m: Making) -> int:
    x, y = m.input((3, 5, 2)), m.tensor((3, 5, 2))
    how = {"seq_dim": 1, "batch_dim": 0}
    m.op("REVERSE_SEQUENCE", [x, ints(m, 2, 5, 0)], [y], "ReverseSequenceOptions", **how)
    return y
