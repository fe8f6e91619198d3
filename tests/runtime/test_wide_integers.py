"""64-bit integers that are data, on targets of 32 bits: as Python's integers that wrap, or refused.

GPUs and 32-bit Arm compute in pairs of words what may not fit 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import aot
from aot.errors import UnsupportedError
from aot.frontends.lib import quotients
from aot.ir.graph import Value
from aot.ir.types import DType
from tests.support.cross import run_module
from tests.support.node import Call, make_package, require_node, require_toolchain, run_calls
from tests.support.plain_builder import Plain, plain
from tests.support.samples_module import NATIVE
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on

Array = np.ndarray[Any, Any]
WIDE = (DType.I64, DType.U64)
CROSS = {"armv7-neon": "arm", "aarch64-generic": "aarch64", "riscv64": "riscv64"}


def truncated(x: int, y: int) -> int:
    if y == 0:
        return 0
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _op(name: str) -> Callable[[Plain, Value, Value], Value]:
    return lambda b, x, y: b.emit(name, x, y)


def _of_one(name: str) -> Callable[[Plain, Value, Value], Value]:
    return lambda b, x, y: b.emit(name, x)


def _shift(name: str) -> Callable[[Plain, Value, Value], Value]:
    """By the low six bits of y."""
    return lambda b, x, y: b.emit(name, x, b.emit("bit_and", y, b.scalar(63, x.type.dtype)))


# name -> an op on two vectors, and what it is of two of Python's integers
OPS: dict[str, tuple[Callable[[Plain, Value, Value], Value], Callable[[int, int], int]]] = {
    "add": (_op("add"), lambda x, y: x + y),
    "sub": (_op("sub"), lambda x, y: x - y),
    "mul": (_op("mul"), lambda x, y: x * y),
    "div": (_op("div"), truncated),
    "min": (_op("minimum"), min),
    "max": (_op("maximum"), max),
    "and": (_op("bit_and"), lambda x, y: x & y),
    "or": (_op("bit_or"), lambda x, y: x | y),
    "xor": (_op("bit_xor"), lambda x, y: x ^ y),
    "not": (_of_one("bit_not"), lambda x, y: ~x),
    "shl": (_shift("shift_left"), lambda x, y: x << (y & 63)),
    "shr": (_shift("shift_right"), lambda x, y: x >> (y & 63)),
    "less": (_op("less"), lambda x, y: x < y),
    "less_equal": (_op("less_equal"), lambda x, y: x <= y),
    "equal": (_op("equal"), lambda x, y: x == y),
    "where": (
        lambda b, x, y: b.emit("where", b.emit("less", x, y), x, y),
        lambda x, y: x if x < y else y,
    ),
    "mod": (
        lambda b, x, y: quotients.remainder(b, x, y, is_truncated=False),
        lambda x, y: x % y if y else x,
    ),
    "floor": (quotients.floor_quotient, lambda x, y: x // y if y else 0),
    "by_1000": (
        lambda b, x, y: b.emit("div", x, b.scalar(1000, x.type.dtype)),
        lambda x, y: truncated(x, 1000),
    ),
    "large": (
        lambda b, x, y: b.emit("add", x, b.scalar(0x7123456789ABCDEF, x.type.dtype)),
        lambda x, y: x + 0x7123456789ABCDEF,
    ),
    "low": (lambda b, x, y: b.cast(x, DType.I32), lambda x, y: x),
    "truth": (lambda b, x, y: b.cast(x, DType.BOOL), lambda x, y: x != 0),
}
SIGNED = {"neg": (_of_one("neg"), lambda x, y: -x), "abs": (_of_one("abs"), lambda x, y: abs(x))}


def ops_of(dtype: DType) -> dict[str, Any]:
    return {**OPS, **(SIGNED if dtype.is_signed else {})}


def module() -> Any:
    b = plain()
    f = b.b.input("f", "f32[M]")
    for dtype in WIDE:
        name = dtype.value
        x, y = (b.b.input(f"{n}_{name}", f"{name}[{name.upper()}]") for n in "xy")
        for op, (build, _) in ops_of(dtype).items():
            b.b.output(f"{op}_{name}", build(b, x, y))
        b.b.output(f"float_{name}", b.cast(x, DType.F32))
        b.b.output(f"whole_{name}", b.cast(f, dtype))
    return b.b.module()


def given() -> dict[str, Array]:
    rng = np.random.default_rng(5)
    feeds: dict[str, Array] = {}
    for dtype in WIDE:
        info = np.iinfo(dtype.numpy)
        near = [info.min, info.min + 1, 0, 1, 2, 1000, info.max - 1, info.max]
        near += [v + d for v in (1 << 31, 1 << 32, 1 << 62, 3_000_000_000) for d in (-1, 0, 1)]
        near += [-v for v in near if info.min <= -v <= info.max]
        edges = [a.ravel() for a in np.meshgrid(*[np.array(near, dtype.numpy)] * 2)]
        for name, edge in zip("xy", edges, strict=True):
            bits = rng.integers(info.min, info.max, 300, dtype.numpy, endpoint=True)
            sizes = rng.integers(0, 64, 300).astype(dtype.numpy)
            feeds[f"{name}_{dtype.value}"] = np.concatenate([edge, bits >> sizes])
    sizes = 2.0 ** rng.integers(-3, 66, 300)
    limits = [s * 2.0**e for e in (31, 32, 63, 64) for s in (1, -1)]
    special = [0.0, -0.0, 0.5, -0.9, -1.0, np.inf, -np.inf, np.nan, 9.223372e18, -9.223372e18]
    f = np.concatenate([rng.normal(0, 1, 300) * sizes, limits, special])
    feeds["f"] = f.astype(np.float32)
    return feeds


def whole(value: float, dtype: DType) -> int:
    """Truncated, and brought to what the type holds."""
    info = np.iinfo(dtype.numpy)
    bounded = 0.0 if value != value else min(max(value, -(2.0**65)), 2.0**65)
    return min(max(int(bounded), int(info.min)), int(info.max))


def check(found: dict[str, Array]) -> None:
    feeds = given()
    for dtype in WIDE:
        x, y = (feeds[f"{n}_{dtype.value}"].tolist() for n in "xy")
        for op, (_, rule) in ops_of(dtype).items():
            got = found[f"{op}_{dtype.value}"]
            values = [rule(a, b) for a, b in zip(x, y, strict=True)]
            bits = 8 * got.dtype.itemsize
            wanted = np.array([int(v) % (1 << bits) for v in values], object).astype(
                f"u{bits // 8}"
            )
            np.testing.assert_array_equal(got, wanted.view(got.dtype), f"{op} of {dtype.value}")
        wide = feeds[f"x_{dtype.value}"]
        np.testing.assert_array_equal(found[f"float_{dtype.value}"], wide.astype(np.float32))
        integers = [whole(v, dtype) for v in feeds["f"].tolist()]
        np.testing.assert_array_equal(
            found[f"whole_{dtype.value}"], np.array(integers, dtype.numpy)
        )


@pytest.mark.parametrize("target", NATIVE[:1])
def test_on_a_cpu(target: str) -> None:
    with aot.load(aot.compile(module(), targets=[target])) as program:
        check(program(given()))


@pytest.mark.qemu
@pytest.mark.parametrize("target", CROSS)
def test_under_qemu(target: str, tmp_path: Path) -> None:
    file = aot.compile(module(), targets=[target]).to_bytes()
    found, _ = run_module(CROSS[target], tmp_path, file, given())
    check(found)


def test_under_node(tmp_path: Path) -> None:
    require_node()
    require_toolchain()
    path = tmp_path / "wide.aotm"
    path.write_bytes(aot.compile(module(), targets=["wasm32"]).to_bytes())
    (outcome,) = run_calls(make_package(path, tmp_path / "package"), [Call(given())])
    assert not outcome.message
    check(outcome.outputs)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_gpu(driver: str, tmp_path: Path) -> None:
    compiled = aot.compile(module(), targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check(program(given()))


def onnx(nodes: str, inputs: str, outputs: str) -> Any:
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    )


# Ids, masks and positions of language models: what they compute of them needs no 64 bits.
IDS = onnx(
    "pad = Constant<value = int64 {1}>() z = Constant<value = int64 {0}>() "
    "one = Constant<value = int64[1] {1}>() two = Constant<value = int64[1] {2}>() "
    "is_text = Equal(ids, pad) not_text = Not(is_text) there = Cast<to = 7>(not_text) "
    "count = CumSum(there, one) masked = Mul(count, there) positions = Add(masked, pad) "
    "p = Gather(table, positions) w = Gather(words, ids) h = Add(p, w) "
    "m = Cast<to = 1>(mask) m2 = Unsqueeze(m, two) y = Mul(h, m2) s = ReduceSum(there, one)",
    "int64[B, S] ids, int64[B, S] mask, float[40, 4] table, float[90, 4] words",
    "float[B, S, 4] y, int64[B, 1] s",
)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_ids_and_masks_need_no_host(driver: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    feeds = {
        "ids": rng.integers(0, 90, (3, 7)),
        "mask": rng.integers(0, 2, (3, 7)),
        "table": rng.standard_normal((40, 4)).astype(np.float32),
        "words": rng.standard_normal((90, 4)).astype(np.float32),
    }
    with aot.load(aot.compile(IDS, targets=NATIVE[:1])) as program:
        wanted = program(feeds)
    compiled = aot.compile(IDS, targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        found = program(feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


SUMS = onnx(
    "one = Constant<value = int64[1] {1}>() s = ReduceSum(x, one) p = ReduceProd(x, one) "
    "t = ReduceMax(x, one) l = ReduceMin(x, one) c = CumSum(x, one)",
    "int64[M, N] x",
    "int64[M, 1] s, int64[M, 1] p, int64[M, 1] t, int64[M, 1] l, int64[M, N] c",
)


def check_sums(run: Callable[[dict[str, Array]], dict[str, Array]]) -> None:
    x = given()["x_i64"][:1500].reshape(-1, 5)
    found = run({"x": x})
    with np.errstate(over="ignore"):
        wanted = {
            "s": x.sum(axis=1, keepdims=True),
            "p": x.prod(axis=1, keepdims=True),
            "t": x.max(axis=1, keepdims=True),
            "l": x.min(axis=1, keepdims=True),
            "c": x.cumsum(axis=1),
        }
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.qemu
@pytest.mark.parametrize("target", CROSS)
def test_sums_under_qemu(target: str, tmp_path: Path) -> None:
    file = aot.compile(SUMS, targets=[target]).to_bytes()
    check_sums(lambda feeds: run_module(CROSS[target], tmp_path, file, feeds)[0])


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_sums_beside_a_gpu(driver: str, tmp_path: Path) -> None:
    """The host has them."""
    compiled = aot.compile(SUMS, targets=["vulkan-1.1", *NATIVE[:1]])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check_sums(program)


LINES = onnx(
    "one = Constant<value = int64[1] {1}>() s = ReduceSum(x, one) c = CumSum(x, one) "
    "r = CumSum<reverse = 1, exclusive = 1>(x, one) f = Cast<to = 1>(s)",
    "int64[M, N] x",
    "int64[M, 1] s, int64[M, N] c, int64[M, N] r, float[M, 1] f",
)


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", DRIVERS)
def test_sums_on_a_gpu(driver: str, tmp_path: Path) -> None:
    """As sums of bytes, of lines of any length."""
    compiled = aot.compile(LINES, targets=["vulkan-1.1"])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        for width in (1, 5, 300):
            x = given()["x_i64"][:1500].reshape(-1, width)
            found = program({"x": x})
            with np.errstate(over="ignore"):
                total, sums = x.sum(axis=1, keepdims=True), x.cumsum(axis=1)
                after = total - sums
            for name, array in {"s": total, "c": sums, "r": after}.items():
                np.testing.assert_array_equal(found[name], array, name)
            np.testing.assert_array_equal(found["f"], total.astype(np.float32))


def test_what_may_not_fit_is_refused_by_name() -> None:
    model = onnx("y = ReduceMax<keepdims = 0>(x)", "int64[N] x", "int64 y")
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(model, targets=["vulkan-1.1"])
    first, node = str(caught.value).splitlines()
    assert first.startswith("target vulkan-1.1 has integers of 32 bits, and operands or results of")
    assert node == "  reduce_max (node 'ReduceMax:y')"


# Numbers that extents decide: of more than 32 bits where the extents are small.
OF_EXTENTS = onnx(
    "s = Shape(x) a = Mul(s, s) b = Mul(a, a) powers = Mul(b, s) "
    "k = Constant<value = int64 {2147483647}>() n = Add(s, k) sums = Add(n, k) "
    "two = Constant<value = int64 {2}>() part = Div(sums, two) less = Less(n, sums) "
    "count = Size(x) f = Cast<to = 1>(powers)",
    "float[A, B] x",
    "int64[2] powers, int64[2] sums, int64[2] part, bool[2] less, int64 count, float[2] f",
)


def check_of_extents(run: Callable[[dict[str, Array]], dict[str, Array]]) -> None:
    for shape in ((300, 2), (1, 1), (0, 7)):
        found = run({"x": np.zeros(shape, np.float32)})
        s = np.array(shape)
        sums = s + 2 * (2**31 - 1)
        wanted = {
            "powers": s**5,
            "sums": sums,
            "part": sums // 2,
            "less": np.array([True, True]),
            "count": s.prod(),
            "f": (s**5).astype(np.float32),
        }
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, name)


def test_numbers_of_extents_on_a_cpu() -> None:
    with aot.load(aot.compile(OF_EXTENTS, targets=NATIVE[:1])) as program:
        check_of_extents(program)


@pytest.mark.vulkan
@pytest.mark.parametrize("has_host", [False, True])
@pytest.mark.parametrize("driver", DRIVERS)
def test_numbers_of_extents_on_a_gpu(driver: str, has_host: bool, tmp_path: Path) -> None:
    compiled = aot.compile(OF_EXTENTS, targets=["vulkan-1.1", *NATIVE[:has_host]])
    with running_on(driver, tmp_path), aot.load(compiled, "vulkan") as program:
        check_of_extents(program)
