"""The text of kernel IR: readable, deterministic, complete, and linear in size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aot.ir.dims import symbol
from aot.ir.expr import Bitcast, Cast, Const, Expr, Fma, Param, Select, Size, unary
from aot.ir.types import DType
from aot.kernels.ir.nodes import (
    Barrier,
    BufferClass,
    For,
    If,
    Kernel,
    KernelBuilder,
    Let,
    LoopKind,
    Prefetch,
    Space,
    Stmt,
)
from aot.kernels.ir.text import to_text
from tests.support.golden import check
from tests.support.hard_kernels import HARD_KERNELS, HardKernel
from tests.support.kernel_terms import (
    F32,
    I32,
    INDEX,
    add,
    f32,
    ix,
    lane,
    load,
    mul,
    op,
    serial,
    store,
    vector,
)

CASES = pytest.mark.parametrize("case", HARD_KERNELS, ids=lambda case: case.name)
GOLDEN = (
    "gather-cpu",
    "gather-gpu",
    "softmax-cpu",
    "softmax-gpu",
    "lstm_step-cpu",
    "attention-gpu",
    "winograd_output_2x2-cpu",
)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, bless: bool) -> None:
    (case,) = (case for case in HARD_KERNELS if case.name == name)
    check(f"kernels/{name}.txt", to_text(case.make()), bless=bless)


@CASES
def test_two_builds_print_alike_and_lines_are_short(case: HardKernel) -> None:
    text = to_text(case.make())
    assert text == to_text(case.make())
    assert max(map(len, text.splitlines())) < 240
    assert "0x" not in text  # nothing of an object's address


def test_all_hard_kernels_differ() -> None:
    texts = [to_text(case.kernel) for case in HARD_KERNELS]
    assert len(set(texts)) == len(texts)


def kernel(
    value: Callable[[KernelBuilder], Expr] | None = None,
    *,
    dtype: DType = F32,
    strides: tuple[int, ...] = (1,),
    binding: BufferClass = BufferClass.OUTPUTS,
    kind: LoopKind = LoopKind.SERIAL,
    axis: int = 0,
    extent: int = 4,
    guard: bool = False,
    space: Space = Space.REGISTER,
    size: int = 4,
) -> Kernel:
    """A kernel of which every argument must show in the text."""
    b = KernelBuilder("k")
    target = b.buffer("y", dtype, binding, (8,), strides, is_written=True)
    b.scratch("s", F32, (size,), space)
    i = b.var("i")
    stored = value(b) if value else Const(dtype, 1)
    body: Stmt = store(target, i, value=stored, guard=op("lt", i, 3) if guard else None)
    return b.build((For(i, extent, kind, (body,), axis),))


VALUES: list[tuple[str, Callable[[KernelBuilder], Expr]]] = [
    ("1.0:f32", lambda b: f32(1)),
    ("-0.0:f32", lambda b: f32(-0.0)),
    ("0.0:f32", lambda b: f32(0.0)),
    ("0.1:f32", lambda b: f32(0.1)),
    ("1.0e-45:f32", lambda b: f32(2.0**-149)),
    ("1.5e+10:f32", lambda b: f32(1.5e10)),
    ("inf:f32", lambda b: f32(float("inf"))),
    ("nan:f32", lambda b: f32(float("nan"))),
    ("f32(1:i32)", lambda b: Cast(Const(I32, 1), F32)),
    ("f32(1)", lambda b: Cast(Const(INDEX, 1), F32)),
    ("f32(true)", lambda b: Cast(Const(DType.BOOL, True), F32)),
    ("bitcast.f32(1:i32)", lambda b: Bitcast(Const(I32, 1), F32)),
    ("f32($N)", lambda b: Cast(Param("N", INDEX), F32)),
    ("f32(size(N))", lambda b: Cast(Size(symbol("N")), F32)),
    ("exp(1.0:f32)", lambda b: unary("exp", f32(1))),
    ("pow(1.0:f32, 2.0:f32)", lambda b: op("pow", f32(1), f32(2))),
    ("1.0:f32 - (2.0:f32 - 3.0:f32)", lambda b: op("sub", f32(1), op("sub", f32(2), f32(3)))),
    ("(1.0:f32 - 2.0:f32) - 3.0:f32", lambda b: op("sub", op("sub", f32(1), f32(2)), f32(3))),
    ("fma(1.0:f32, 2.0:f32, 3.0:f32)", lambda b: Fma(f32(1), f32(2), f32(3), F32)),
    (
        "(1:i32 < 2:i32) ? 1.0:f32 : 2.0:f32",
        lambda b: Select(op("lt", Const(I32, 1), Const(I32, 2)), f32(1), f32(2), F32),
    ),
    ("s[0]", lambda b: load(b.scratches[0], ix(0))),
    (
        "s[0] where true else 2.0:f32",
        lambda b: load(b.scratches[0], ix(0), guard=Const(DType.BOOL, True), other=2),
    ),
]


@pytest.mark.parametrize(("text", "value"), VALUES, ids=[text for text, _ in VALUES])
def test_values(text: str, value: Callable[[KernelBuilder], Expr]) -> None:
    shown = next(line for line in to_text(kernel(value)).splitlines() if "y[i] =" in line)
    assert shown.split(" = ", 1)[1] == text


def test_every_attribute_shows() -> None:
    variants = [
        kernel(),
        kernel(dtype=I32),
        kernel(strides=(2,)),
        kernel(binding=BufferClass.ARENA),
        kernel(kind=LoopKind.PARALLEL),
        kernel(kind=LoopKind.LANE),
        kernel(kind=LoopKind.LANE, axis=1),
        kernel(extent=5),
        kernel(guard=True),
        kernel(space=Space.WORKGROUP),
        kernel(size=5),
        kernel(lambda b: f32(2)),
        kernel(lambda b: Cast(Const(I32, 1), F32)),
        replace(kernel(), name="other"),
        replace(kernel(), params=(*kernel().params, Param("n", INDEX))),
        replace(kernel(), params=(*kernel().params, Param("n", I32))),
    ]
    texts = [to_text(k) for k in variants]
    assert len(set(texts)) == len(texts)


def test_sharing_is_of_values_and_not_of_objects() -> None:
    def twice(b: KernelBuilder, is_shared: bool) -> Expr:
        first = add(load(b.scratches[0], ix(0)), f32(1))
        second = first if is_shared else add(load(b.scratches[0], ix(0)), f32(1))
        return mul(first, second)

    shared = to_text(kernel(lambda b: twice(b, True)))
    assert shared == to_text(kernel(lambda b: twice(b, False)))
    assert "%0 = s[0] + 1.0:f32\n    y[i] = %0 * %0\n" in shared


def test_text_is_linear_in_the_size_of_the_expression() -> None:
    def doubled(b: KernelBuilder) -> Expr:
        e = load(b.scratches[0], ix(0))
        for _ in range(2000):
            e = add(e, e)
        return e

    text = to_text(kernel(doubled))
    assert text.count("\n") < 2020
    assert len(text) < 60_000


def test_statements_of_every_kind() -> None:
    b = KernelBuilder("all")
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (8,), (1,), is_written=True)
    v, w, t = b.var("v"), b.var("w"), b.var("t", F32)
    made = b.build(
        (
            lane(
                v,
                8,
                [
                    Let(t, f32(2)),
                    If(op("lt", v, 3), (store(y, v, value=t),), (store(y, v, value=f32(0)),)),
                ],
            ),
            Barrier(),
            serial(w, symbol("N"), [Prefetch(y, add(w, ix(9))), vector(b.var("u"), 2, [])]),
        )
    )
    assert (
        to_text(made)
        == """\
kernel all(y_offset: index) {
  buffer y: f32[8] strides [1] in outputs at y_offset written
  for v in 0..8 lane(0) {
    let t: f32 = 2.0:f32
    if v < 3 {
      y[v] = t
    } else {
      y[v] = 0.0:f32
    }
  }
  barrier
  for w in 0..N serial {
    prefetch y[w + 9]
    for u in 0..2 vector {
    }
  }
}
"""
    )
