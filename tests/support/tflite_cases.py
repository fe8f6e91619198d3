"""Models of one operator, by name: each operator with the element types, shapes and options that
change what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.tflite_models import NUMBERS, Array, Builder

SAME, VALID = 0, 1
ACTIVATIONS = NUMBERS["ActivationFunctionType"]


@dataclass(frozen=True)
class Case:
    """A model with inputs for it."""

    name: str
    make: Callable[[], tuple[bytes, dict[str, Array]]]
    tolerance: float = 2e-6
    steps: int = 1
    calls: int = 1


CASES: list[Case] = []


class Making(Builder):
    """A graph whose inputs have contents."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, Array] = {}
        self.random = np.random.RandomState(7)

    def numbers(
        self, shape: Sequence[int], dtype: Any = np.float32, low: float = -2.0, high: float = 2.0
    ) -> Array:
        """Random ones; of integers, all that the element type has unless bounds are wider."""
        kind = np.dtype(dtype)
        if kind.kind == "f":
            return self.random.uniform(low, high, shape).astype(kind)
        if kind.kind == "b":
            return self.random.randint(0, 2, shape).astype(kind)
        if kind.itemsize < 4:
            info = np.iinfo(kind)
            return self.random.randint(info.min, info.max + 1, shape).astype(kind)
        return self.random.randint(int(low), int(high) + 1, shape).astype(kind)

    def input(
        self,
        shape: Sequence[int],
        dtype: Any = np.float32,
        low: float = -2.0,
        high: float = 2.0,
        data: Array | None = None,
        **how: Any,
    ) -> int:
        """An input with random contents, or these."""
        number = self.tensor(shape, dtype, **how)
        self.inputs[number] = (
            self.numbers(shape, dtype, low, high) if data is None else np.asarray(data, dtype)
        )
        return number

    def done(self, *outputs: int) -> tuple[bytes, dict[str, Array]]:
        """The file and its inputs."""
        names = {self.tensors[n]["name"]: a for n, a in self.inputs.items()}
        return self.model(list(self.inputs), outputs), names


def case(name: str, **how: Any) -> Callable[[Callable[[Making], Sequence[int] | int]], None]:
    """Registers a model: a function that builds it and gives its outputs."""

    def register(build: Callable[[Making], Sequence[int] | int]) -> None:
        def make() -> tuple[bytes, dict[str, Array]]:
            m = Making()
            outputs = build(m)
            return m.done(*([outputs] if isinstance(outputs, int) else outputs))

        CASES.append(Case(name, make, **how))

    return register


# arithmetic

_BINARY = {
    "ADD": "AddOptions",
    "SUB": "SubOptions",
    "MUL": "MulOptions",
    "DIV": "DivOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions",
    "FLOOR_DIV": "FloorDivOptions",
    "FLOOR_MOD": "FloorModOptions",
    "POW": "PowOptions",
    "ATAN2": "ATan2Options",
}
_INTEGERS = {"FLOOR_DIV": 5, "FLOOR_MOD": 5}


def _binary_cases() -> None:
    shapes = [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 5)), ((2, 2), ())]
    for name, options in _BINARY.items():
        for number, (left, right) in enumerate(shapes[: 1 if name == "ATAN2" else None]):

            @case(f"{name}-f32-{number}", tolerance=1e-5)
            def _(
                m: Making,
                name: str = name,
                options: str = options,
                left: Any = left,
                right: Any = right,
            ) -> int:
                low = 0.3 if name in ("POW", "DIV") else -2.0
                a, b = m.input(left, low=low), m.input(right, low=low)
                y = m.tensor(np.broadcast_shapes(left, right))
                m.op(name, [a, b], [y], options)
                return y

        if name in ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "FLOOR_DIV", "FLOOR_MOD", "DIV"):

            @case(f"{name}-i32")
            def _(m: Making, name: str = name, options: str = options) -> int:
                a = m.input((3, 40), np.int32, -50, 50)
                divisor = m.numbers((40,), np.int32, 1, 9) * np.where(np.arange(40) % 2, -1, 1)
                b = m.input((40,), np.int32, data=divisor)
                y = m.tensor((3, 40), np.int32)
                m.op(name, [a, b], [y], options)
                return y

    for name in ("FLOOR_DIV", "FLOOR_MOD"):

        @case(f"{name}-f32-parted", tolerance=1e-9)
        def _(m: Making, name: str = name) -> int:
            a = m.input((8,), data=np.array([1, 5.5, 6, 0.84, 1e10, -1, -0.0, -2.5]))
            b = m.input((8,), data=np.array([0.1, 1.1, 0.2, 0.02, 3, 0.1, 3, -0.1]))
            y = m.tensor((8,))
            m.op(name, [a, b], [y], _BINARY[name])
            return y

        for dtype in (np.int8, np.int16, np.int32, np.int64):
            if (name, dtype) == ("FLOOR_DIV", np.int64):
                continue  # LiteRT has none

            @case(f"{name}-{np.dtype(dtype).name}-large")
            def _(m: Making, name: str = name, dtype: Any = dtype) -> int:
                most = int(np.iinfo(dtype).max)
                numbers = [c + s for c in (-most, -most // 2, 0, most // 2, most) for s in (0, -1)]
                pairs = [(a, b) for a in numbers for b in numbers if b and b != -1]
                a, b = (m.input((len(pairs),), dtype, data=c) for c in zip(*pairs, strict=True))
                y = m.tensor((len(pairs),), dtype)
                m.op(name, [a, b], [y], _BINARY[name])
                return y

    for name in ("ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", "MAXIMUM", "MINIMUM"):
        for dtype in (np.int8, np.uint8, np.int16):
            if dtype is not np.int8 and name == "SQUARED_DIFFERENCE":
                continue
            if dtype is np.int16 and name in ("MAXIMUM", "MINIMUM"):
                continue

            @case(f"{name}-{np.dtype(dtype).name}")
            def _(m: Making, name: str = name, dtype: Any = dtype) -> int:
                zero = {np.int8: 5, np.uint8: 130, np.int16: 0}[dtype]
                scale = 0.03 if dtype is not np.int16 else 1.3e-4
                is_moved = name in ("MAXIMUM", "MINIMUM")
                a = m.input((2, 37), dtype, scale=scale, zero=zero)
                b = m.input(
                    (2, 37),
                    dtype,
                    scale=scale if is_moved else scale * 1.7,
                    zero=zero if is_moved else 0 if dtype is np.int16 else zero + 3,
                )
                y = m.tensor(
                    (2, 37),
                    dtype,
                    scale=scale if is_moved else scale * 2.2,
                    zero=zero if is_moved else 0 if dtype is np.int16 else zero - 9,
                )
                m.op(name, [a, b], [y], _BINARY[name])
                return y


_binary_cases()


def _fused_cases() -> None:
    for activation in ("RELU", "RELU_N1_TO_1", "RELU6"):
        for dtype in (np.float32, np.int8, np.uint8):

            @case(f"ADD-{activation}-{np.dtype(dtype).name}")
            def _(m: Making, activation: str = activation, dtype: Any = dtype) -> int:
                how = (
                    [{}] * 3
                    if dtype is np.float32
                    else [
                        {"scale": 0.06, "zero": 3},
                        {"scale": 0.05, "zero": -2 if dtype is np.int8 else 7},
                        {"scale": 0.04, "zero": 0 if dtype is np.int8 else 100},
                    ]
                )
                a, b = (
                    m.input((5, 9), dtype, -8, 8, **how[0]),
                    m.input((5, 9), dtype, -8, 8, **how[1]),
                )
                y = m.tensor((5, 9), dtype, **how[2])
                m.op(
                    "ADD",
                    [a, b],
                    [y],
                    "AddOptions",
                    fused_activation_function=ACTIVATIONS[activation],
                )
                return y


_fused_cases()

_UNARY = {
    "ABS": "AbsOptions",
    "CEIL": None,
    "COS": "CosOptions",
    "ELU": None,
    "EXP": "ExpOptions",
    "FLOOR": None,
    "HARD_SWISH": "HardSwishOptions",
    "LOG": None,
    "LOGISTIC": None,
    "NEG": "NegOptions",
    "RELU": None,
    "RELU6": None,
    "RELU_0_TO_1": None,
    "RELU_N1_TO_1": None,
    "ROUND": None,
    "RSQRT": None,
    "SIGN": "SignOptions",
    "SIN": None,
    "SQRT": None,
    "SQUARE": "SquareOptions",
    "TANH": None,
    "ZEROS_LIKE": "ZerosLikeOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "SOFTMAX": "SoftmaxOptions",
    "LOG_SOFTMAX": "LogSoftmaxOptions",
    "GELU": "GeluOptions",
    "LEAKY_RELU": "LeakyReluOptions",
}
_FIELDS: dict[str, dict[str, Any]] = {"SOFTMAX": {"beta": 1.3}, "LEAKY_RELU": {"alpha": 0.2}}


def _unary_cases() -> None:
    for name, options in _UNARY.items():
        for shape in ((2, 3, 5), (7,)):

            @case(f"{name}-f32-{len(shape)}", tolerance=2e-5)
            def _(
                m: Making, name: str = name, options: str | None = options, shape: Any = shape
            ) -> int:
                low = 0.1 if name in ("LOG", "SQRT", "RSQRT") else -8.0
                x, y = m.input(shape, low=low, high=8.0), m.tensor(shape)
                m.op(name, [x], [y], options, **_FIELDS.get(name, {}))
                return y

    fixed = {
        "LOGISTIC": (1 / 256, -128),
        "TANH": (1 / 128, 0),
        "SOFTMAX": (1 / 256, -128),
        "LOG_SOFTMAX": (16 / 256, 127),
        "L2_NORMALIZATION": (1 / 128, 0),
    }
    for name in (
        "LOGISTIC",
        "TANH",
        "SOFTMAX",
        "LOG_SOFTMAX",
        "L2_NORMALIZATION",
        "HARD_SWISH",
        "RELU",
        "RELU6",
        "LEAKY_RELU",
        "ELU",
        "ABS",
        "NEG",
        "EXP",
        "GELU",
        "RSQRT",
        "LOG",
    ):

        @case(f"{name}-i8")
        def _(m: Making, name: str = name) -> int:
            zero = {"RSQRT": -128, "LOG": -128, "NEG": 0}.get(name, 3)
            x = m.input(
                (3, 64),
                np.int8,
                scale=0.05,
                zero=zero,
                data=np.maximum(m.numbers((3, 64), np.int8), -120),
            )
            scale, zero_y = fixed.get(name, (0.06, 0 if name == "NEG" else -20))
            if name == "NEG":
                scale = 0.05
            y = m.tensor((3, 64), np.int8, scale=scale, zero=zero_y)
            m.op(name, [x], [y], _UNARY[name], **_FIELDS.get(name, {}))
            return y


_unary_cases()


def _compared_cases() -> None:
    for name in ("EQUAL", "NOT_EQUAL", "LESS", "GREATER", "LESS_EQUAL", "GREATER_EQUAL"):
        words = name.title().replace("_", "") + "Options"
        for dtype in (np.float32, np.int32, np.int64):

            @case(f"{name}-{np.dtype(dtype).name}")
            def _(m: Making, name: str = name, words: str = words, dtype: Any = dtype) -> int:
                a = m.input((4, 9), dtype, data=m.numbers((4, 9), np.int32, -2, 2))
                b = m.input((9,), dtype, data=m.numbers((9,), np.int32, -2, 2))
                y = m.tensor((4, 9), np.bool_)
                m.op(name, [a, b], [y], words)
                return y

    for name in ("LOGICAL_AND", "LOGICAL_OR"):

        @case(name)
        def _(m: Making, name: str = name) -> int:
            a, b, y = (
                m.input((3, 5), np.bool_),
                m.input((3, 5), np.bool_),
                m.tensor((3, 5), np.bool_),
            )
            m.op(name, [a, b], [y])
            return y


_compared_cases()


@case("SELECT-rows")
def _(m: Making) -> int:
    c, a, b, y = m.input((4,), np.bool_), m.input((4, 3)), m.input((4, 3)), m.tensor((4, 3))
    m.op("SELECT", [c, a, b], [y], "SelectOptions")
    return y


@case("SELECT_V2")
def _(m: Making) -> int:
    c, a, b, y = m.input((4, 1), np.bool_), m.input((4, 3)), m.input((3,)), m.tensor((4, 3))
    m.op("SELECT_V2", [c, a, b], [y], "SelectV2Options")
    return y


@case("PRELU", tolerance=1e-5)
def _(m: Making) -> int:
    x, y = m.input((1, 3, 4, 5)), m.tensor((1, 3, 4, 5))
    m.op("PRELU", [x, m.constant(m.numbers((1, 1, 5)))], [y])
    return y


for _from in (np.float32, np.int32, np.int64, np.int8, np.uint8, np.bool_):
    for _to in (np.float32, np.int32, np.int64, np.int8, np.uint8, np.bool_):
        if _from is not _to:

            @case(f"CAST-{np.dtype(_from).name}-{np.dtype(_to).name}")
            def _(m: Making, a: Any = _from, b: Any = _to) -> int:
                x = m.input((3, 8), a, 0, 100)
                y = m.tensor((3, 8), b)
                m.op("CAST", [x], [y], "CastOptions")
                return y


def iterated() -> Iterator[Case]:
    """All cases."""
    yield from CASES
