"""Attention as it is shipped: compiled once with open dims, run at sizes around its tiles, and on
scores that are infinite, missing or NaN. The oracle is numpy in float64."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import aot
from aot.analysis.cost.plan import plan
from aot.backends.cpu.compile import emit_assembly
from aot.backends.vulkan.emit import compile_kernel
from aot.builder import Builder
from aot.errors import CompileError, UnsupportedError
from aot.frontends.text import import_text
from aot.ir.dims import product, symbol
from aot.ir.record import call_of
from aot.ir.types import DType, TensorType
from aot.kernels.ir import interpreter
from aot.kernels.ir.nodes import Space
from aot.kernels.lowering import lower
from aot.ops.attention import ATTENTION
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.fuse import FUSE
from aot.passes.fusion.outline import OUTLINE
from aot.passes.fusion.tie_operands import TIE_OPERANDS
from aot.target import selection as targets
from tests.support import lowering_checks, vulkan_device
from tests.support.executables import outlined
from tests.support.vulkan_graph import run_on_driver

Array = np.ndarray[Any, Any]
INFINITY = float("inf")

TEXT = """
func @main(%q: f32[B, 4, S, {depth}], %k: f32[B, 2, T, {depth}], %v: f32[B, 2, T, {width}],
           %bias: f32[S, T], %keep: bool[B, 1, 1, T]) -> ("y") {{
  %y = attention(%q, %k, %v, %bias, %keep) {{scale = 0.3, {attrs}}} : f32[B, 4, S, {width}]
  return(%y)
}}
"""

ONE = "func @main(%q: f32[1, 2, S, {d}], %k: f32[1, 2, S, {d}], %v: f32[1, 2, S, {e}])" + (
    ' -> ("y") {{\n  %y = attention(%q, %k, %v) : f32[1, 2, S, {e}]\n  return(%y)\n}}\n'
)
CAUSAL = ONE.replace("(%q, %k, %v) :", "(%q, %k, %v) {{offset = 7}} :")


def run(x: dict[str, Array], attrs: str = "fill = -inf") -> Array:
    """The result at the shapes of `x`; only its depths are compiled in."""
    depth, width = x["q"].shape[-1], x["v"].shape[-1]
    module = _compiled(TEXT.format(depth=depth, width=width, attrs=attrs))
    return np.asarray(aot.load(module, device="cpu")(x)["y"])


@cache
def _compiled(text: str) -> bytes:
    return aot.compile(text.encode(), targets=["host"]).to_bytes()


def feeds(
    batch: int, queries: int, keys: int, depth: int, width: int, seed: int = 0
) -> dict[str, Array]:
    rng = np.random.RandomState(seed)
    shapes = {
        "q": (batch, 4, queries, depth),
        "k": (batch, 2, keys, depth),
        "v": (batch, 2, keys, width),
        "bias": (queries, keys),
    }
    made: dict[str, Array] = {n: rng.randn(*s).astype(np.float32) for n, s in shapes.items()}
    made["keep"] = rng.rand(batch, 1, 1, keys) < 0.8
    made["keep"][..., 0] = True
    return made


def expected(x: dict[str, Array], fill: float = -INFINITY) -> Array:
    q, bias = x["q"].astype(np.float64), x["bias"].astype(np.float64)
    k, v = (np.repeat(x[name].astype(np.float64), 2, 1) for name in "kv")
    with np.errstate(all="ignore"):
        scores = np.where(x["keep"], 0.3 * (q @ np.swapaxes(k, 2, 3)) + bias, fill)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def check(found: Array, wanted: Array, tolerance: float = 2e-6) -> None:
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    error = np.nan_to_num(found.astype(np.float64) - wanted)
    assert np.abs(error).max(initial=0) <= tolerance * max(np.nanmax(np.abs(wanted)), 1e-30)


# a CPU's blocks are 8 to 32 queries, its tiles 64 keys
@pytest.mark.parametrize("queries", [1, 2, 16, 33, 64])
@pytest.mark.parametrize("keys", [1, 63, 64, 65, 130])
def test_open_sizes(queries: int, keys: int) -> None:
    x = feeds(2, queries, keys, 8, 16)
    check(run(x), expected(x))


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (3, 17), (40, 48), (7, 100), (128, 128)])
def test_depths(depth: int, width: int) -> None:
    x = feeds(1, 19, 70, depth, width)
    check(run(x), expected(x))


TURNED = """
func @main(%q: f32[B, 4, {s}, {depth}], %k: f32[B, 2, {depth}, {t}], %v: f32[B, 2, {t}, 16],
           %bias: f32[{s}, {t}], %keep: bool[B, 1, 1, {t}]) -> ("y") {{
  %kt = transpose(%k) {{perm = [0, 1, 3, 2]}} : f32[B, 2, {t}, {depth}]
  %y = attention(%q, %kt, %v, %bias, %keep) {{scale = 0.3, fill = -inf}} : f32[B, 4, {s}, 16]
  return(%y)
}}
"""


@pytest.mark.parametrize("target", ["host", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 33), (3, 34), (33, 33), (36, 7), (37, 64), (65, 130), (33, 128)]
)
def test_keys_that_lie_abreast(queries: int, keys: int, target: str) -> None:
    """The few queries that are left of blocks, taken one by one, with keys in lanes."""
    x = feeds(2, queries, keys, 24, 16)
    text = TURNED.format(s=queries, t=keys, depth=24)
    module = aot.compile(text.encode(), targets=[target]).to_bytes()
    turned = {**x, "k": np.ascontiguousarray(np.swapaxes(x["k"], 2, 3))}
    check(np.asarray(aot.load(module, device="cpu")(turned)["y"]), expected(x))


@pytest.mark.parametrize("queries", [2, 3, 5])
def test_no_two_blocks_have_a_query(queries: int) -> None:
    """A block has two queries where scratch holds no more, fewer than are taken one by one."""
    b = Builder()
    q, k, v = (b.input(name, f"f32[1, {n}, 80]") for name, n in zip("qkv", "S33", strict=True))
    b.output("y", b.op("attention", q, k, v))
    rng = np.random.default_rng(queries)
    arrays = [rng.uniform(-1, 1, (1, n, 80)).astype(np.float32) for n in (queries, 3, 3)]
    lowering_checks.check(b.function(), arrays, "thumbv7em", 1)


def test_nothing_to_do_is_done() -> None:
    assert run(feeds(2, 0, 5, 8, 16)).shape == (2, 4, 0, 16)
    found = run({**feeds(2, 3, 1, 8, 16), **_no_keys(2, 3, 8, 16)})
    assert np.array_equal(found, np.zeros((2, 4, 3, 16), np.float32))


def _no_keys(batch: int, queries: int, depth: int, width: int) -> dict[str, Array]:
    empty = {"k": (batch, 2, 0, depth), "v": (batch, 2, 0, width), "bias": (queries, 0)}
    made: dict[str, Array] = {name: np.zeros(shape, np.float32) for name, shape in empty.items()}
    return {**made, "keep": np.zeros((batch, 1, 1, 0), bool)}


def test_a_query_without_keys_gives_zero() -> None:
    x = feeds(2, 9, 70, 8, 16)
    x["keep"][1] = False
    x["bias"][4] = -INFINITY
    wanted = expected(x)
    wanted[1], wanted[:, :, 4] = 0, 0
    check(run(x), wanted)


@pytest.mark.parametrize("queries", [1, 3, 15, 40])
@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-generic", "thumbv7em", "vulkan-1.1"])
def test_no_keys_where_their_number_is_known(queries: int, target: str) -> None:
    b = Builder()
    q, kv = b.input("q", f"f32[1, 2, {queries}, 8]"), b.input("kv", "f32[1, 2, 0, 8]")
    b.output("y", b.op("attention", q, kv, kv, None, None, scale=0.375))
    kernel = lower(outlined(b.function()), targets.load(target))
    buffers = {
        buffer.name: np.full(product(buffer.shape), 0.5, np.float32) for buffer in kernel.buffers
    }
    interpreter.run(kernel, buffers, {}, check_races=True)
    assert not buffers["out"].any()


def test_keys_that_are_masked_for_long_come_late() -> None:
    """The first tiles have nothing; what they leave must not reach the later ones."""
    x = feeds(1, 5, 200, 8, 16)
    x["keep"][..., :150] = False
    check(run(x), expected(x))


def test_scores_far_apart_in_different_tiles() -> None:
    x = feeds(1, 33, 200, 8, 16)
    x["bias"] += np.linspace(-80, 300, 200, dtype=np.float32)
    tolerance = 300 * 2.0**-23  # the rounding of such scores
    check(run(x), expected(x), tolerance)
    x["bias"] = x["bias"][:, ::-1].copy()
    check(run(x), expected(x), tolerance)


def test_the_lowest_number_as_a_mask_means_what_softmax_makes_of_it() -> None:
    """A row of nothing else is an average: the scores are lost in the number."""
    x = feeds(1, 6, 70, 8, 16)
    x["bias"][2] = np.finfo(np.float32).min
    x["bias"][3, 10:] = np.finfo(np.float32).min
    wanted = expected(x)
    seen = x["keep"][0, 0, 0]
    wanted[:, :, 2] = np.repeat(x["v"], 2, 1)[:, :, seen].mean(2)
    check(run(x), wanted)


def test_nan_and_infinite_scores_show() -> None:
    x = feeds(1, 40, 70, 8, 16)
    x["q"][0, 1, 7, 2] = np.nan
    x["bias"][9, 30] = INFINITY
    x["keep"][...] = True
    check(run(x), expected(x))


def test_a_finite_fill_takes_part() -> None:
    x = feeds(2, 9, 70, 8, 16)
    x["keep"][1] = False
    check(run(x, "fill = 0.5"), expected(x, 0.5))


@pytest.mark.parametrize("offset", [-3, 0, 60, 500])
@pytest.mark.parametrize("queries", [5, 70])
def test_causal(offset: int, queries: int) -> None:
    """Tiles beyond the last query's reach are left out."""
    x = feeds(1, queries, 130, 8, 16)
    x["keep"][...] = True
    found = run(x, f"offset = {offset}")
    ahead = np.arange(130) > np.arange(queries)[:, None] + offset
    x["bias"][ahead] = -INFINITY
    wanted = expected(x)
    wanted[:, :, ahead.all(1)] = 0
    check(found, wanted)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_keys_are_compared_and_widened_as_vectors(dtype: str) -> None:
    """Which queries see which keys is asked of a vector of either at once, not one by one."""
    target = targets.load("x86-64-v4")
    text = CAUSAL.format(d=64, e=64).replace("f32[", f"{dtype}[")
    assembly = emit_assembly(lower(outlined(import_text(text).main), target), target)
    assert "%zmm" in assembly
    assert "kshift" not in assembly
    assert not re.search(r"vmovss.*{%k", assembly)
    # of queries: those that are turned one by one, and four at once
    assert len(re.findall(r"vcvtph2ps\s+%xmm", assembly)) <= 2 + 16


SCALED = """
func @main(%q: f32[B, 4, S, {depth}], %k: i8[B, 2, T, {depth}], %v: i8[B, 2, T, {width}],
           %ks: f16[B, 2, T, 1], %vs: f32[B, 2, T, 1]) -> ("y") {{
  %0 = cast(%k) {{to = f32}} : f32[B, 2, T, {depth}]
  %1 = cast(%ks) {{to = f32}} : f32[B, 2, T, 1]
  %2 = mul(%0, %1) : f32[B, 2, T, {depth}]
  %3 = cast(%v) {{to = f32}} : f32[B, 2, T, {width}]
  %4 = mul(%vs, %3) : f32[B, 2, T, {width}]
  %y = attention(%q, %2, %4) {{scale = 0.3}} : f32[B, 4, S, {width}]
  return(%y)
}}
"""


@pytest.mark.parametrize("queries", [1, 4, 5, 40])
@pytest.mark.parametrize("keys", [1, 64, 131])
@pytest.mark.parametrize(("depth", "width"), [(16, 16), (40, 7), (1, 1)])
def test_keys_and_values_in_8_bits_with_a_scale_for_each(
    queries: int, keys: int, depth: int, width: int
) -> None:
    rng = np.random.RandomState(queries * keys)
    x = feeds(2, queries, keys, depth, width)
    x["bias"][...], x["keep"][...] = 0, True
    given: dict[str, Array] = {"q": x["q"]}
    for name, dtype in (("k", np.float16), ("v", np.float32)):
        codes = rng.randint(-127, 128, x[name].shape).astype(np.int8)
        scales = (rng.rand(*codes.shape[:-1], 1) / 50).astype(dtype)
        given |= {name: codes, f"{name}s": scales}
        x[name] = codes * scales.astype(np.float32)
    module = _compiled(SCALED.format(depth=depth, width=width))
    found = aot.load(module, device="cpu")(given)["y"]
    check(found, expected(x))


def test_rows_of_keys_that_are_scaled_move_into_attention_and_nothing_else_does() -> None:
    text = SCALED.format(depth=16, width=16)
    for source, count in ((text, 1), (text.replace("mul(%0, %1)", "add(%0, %1)"), 2)):
        module = import_text(source)
        run_passes(module, [FUSE, TIE_OPERANDS, OUTLINE], PassContext())
        assert len(module.executables) == count


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize(
    ("queries", "keys", "depth", "width"),
    # workgroups are 4 to 32 queries by the width; fewer ones share the rows of a workgroup
    [(3, 130, 8, 70), (17, 65, 80, 8), (70, 130, 24, 40), (1, 300, 16, 16), (5, 70, 7, 9)],
)
def test_on_a_gpu(queries: int, keys: int, depth: int, width: int, driver: str) -> None:
    x = feeds(1, queries, keys, depth, width)
    x["keep"][..., 10:70] = False
    x["bias"][queries // 2] = -INFINITY
    offset = max(keys - queries, 0) // 2
    x["bias"][0, offset + 1 :] = np.nan  # which nobody sees
    module = import_text(TEXT.format(depth=depth, width=width, attrs=f"offset = {offset}"))
    (found,) = run_on_driver(driver, module.main, x)
    x["bias"][np.arange(keys) > np.arange(queries)[:, None] + offset] = -INFINITY
    wanted = expected(x)
    wanted[:, :, queries // 2] = 0
    check(found, wanted)


@pytest.mark.parametrize("size", [8, 33, 64, 128, 256])
def test_shaders_stay_small(size: int) -> None:
    """With every operand: drivers' compile time grows worse than linearly with the words."""
    target = targets.load("vulkan-1.1")
    text = TEXT.format(depth=size, width=size, attrs="offset = 5")
    executable = outlined(import_text(text).main)
    assert len(compile_kernel(lower(executable, target), target).words) // 4 <= 2700


def test_open_depths_are_refused() -> None:
    for d, e, what in (("D", 8, "queries is d"), (8, "E", "values is d")):
        with pytest.raises(UnsupportedError) as caught:
            aot.compile(ONE.format(d=d, e=e).encode(), targets=["x86-64-v3"])
        assert f"the depth of the {what}" in str(caught.value)


@pytest.mark.parametrize("depth", [8, 64, 128, 300])
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v4", "aarch64-generic", "vulkan-1.1"])
def test_scratch_is_bounded(name: str, depth: int) -> None:
    """A GPU's shared memory is a limit; a CPU's scratch grows with the depth, not with the keys."""
    target = targets.load(name)
    executable = outlined(import_text(ONE.format(d=depth, e=depth)).main)
    kernel = lower(executable, target)
    shared = sum(
        int(np.prod(s.shape)) * s.dtype.bytes for s in kernel.scratch if s.space is Space.WORKGROUP
    )
    if target.gpu is not None:
        assert shared <= target.gpu.max_shared_bytes
    else:
        rows = plan(call_of(next(iter(executable.block))), target).rows
        assert shared <= 4 * (rows * (2 * depth + 64 + 16) + 64 * (depth + 16) + 3 * rows)


def type_of(*dims: int | str, dtype: DType = DType.F32) -> TensorType:
    return TensorType(dtype, tuple(symbol(d) if isinstance(d, str) else d for d in dims))


Q = type_of(1, 4, "S", 8)
ERRORS = [
    ((Q, type_of(4, "S", 8), type_of(4, "S", 8)), "q, k and v have one rank, 3 or more"),
    (
        (Q, type_of(1, 4, "S", 9), type_of(1, 4, "S", 8)),
        "q [..., heads, queries, d], k [..., groups, keys, d] and v [..., groups, keys, e]",
    ),
    (
        (Q, type_of(1, 4, 5, 8), type_of(1, 4, 6, 8)),
        "q [..., heads, queries, d], k [..., groups, keys, d] and v [..., groups, keys, e]",
    ),
    (
        (Q, type_of(1, 3, 5, 8), type_of(1, 3, 5, 8)),
        "heads of q are a multiple of those of k",
    ),
    (
        (Q, type_of(1, 4, 5, 8), type_of(1, 4, 5, 8), type_of(2, 1, 1, 5)),
        "bias broadcasts to [..., heads, queries, keys]",
    ),
    (
        (Q, *[type_of(1, 4, 5, 8)] * 2, None, type_of(6, dtype=DType.BOOL)),
        "keep broadcasts to [..., heads, queries, keys]",
    ),
]


@pytest.mark.parametrize(("operands", "text"), ERRORS, ids=lambda v: str(v)[:30])
def test_wrong_operands(operands: tuple[TensorType | None, ...], text: str) -> None:
    with pytest.raises(CompileError) as caught:
        ATTENTION.call(operands, {}, "the node")
    assert str(caught.value).startswith("attention (node 'the node'): constraint ")
    assert f": {text}; found operands (" in str(caught.value)


def test_equalities_of_open_dims_are_noted() -> None:
    call = ATTENTION.call(
        [type_of("B", "H", "S", 8), type_of("B", 2, "T", 8), type_of("B", 2, "U", 8)], {}
    )
    assert [f"{a.left} == {a.right}" for a in call.assumptions] == [
        "T == U",
        "H - 2*(H//2) == 0",
    ]
    assert str(call.result_types[0]) == "f32[B, H, S, 8]"


@pytest.mark.parametrize(
    ("queries", "keys", "depth", "width"), [(20, 300, 64, 64), (70, 130, 40, 24), (2, 65, 24, 40)]
)
def test_half_precision_is_summed_in_single(
    queries: int, keys: int, depth: int, width: int
) -> None:
    """What is rounded is what is stored: scores and sums are not."""
    x = feeds(1, queries, keys, depth, width)
    x["keep"][...] = True
    half = {n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in x.items()}
    text = TEXT.format(depth=depth, width=width, attrs="fill = -inf").replace("f32[", "f16[")
    found = aot.load(_compiled(text), device="cpu")(half)["y"]
    assert found.dtype == np.float16
    wide = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in half.items()}
    check(found, expected(wide), tolerance=2.0**-10)


def test_constants_fold_in_order() -> None:
    """The exact reference gives what the fast one does, whatever numpy's library sums first."""
    rng = np.random.RandomState(3)
    call = ATTENTION.call([type_of(2, 5, 16), type_of(2, 70, 16), type_of(2, 70, 9)], {})
    inputs = [rng.randn(*t.shape).astype(np.float32) for t in call.operands if t is not None]
    assert ATTENTION.reference is not None
    (fast,) = ATTENTION.reference(call, inputs)
    call.is_exact = True
    (exact,) = ATTENTION.reference(call, inputs)
    check(exact, fast, tolerance=1e-7)
