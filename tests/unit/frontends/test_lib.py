"""Decompositions on a builder that knows no format: any importer may bring its own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aot.errors import CompileError
from aot.frontends.lib import attention, fourier, normalization, pixels, resize, windows
from aot.frontends.lib.builder import GraphBuilder, UnsupportedNodeError
from aot.frontends.lib.deformable import Deformable, deformable_convolution
from aot.frontends.lib.einsum import einsum
from aot.frontends.lib.matrix import matrix_product
from aot.frontends.lib.recurrent import Layer, activations_of, recurrent
from aot.frontends.lib.transposed import Transposed, transposed_convolution, transposed_extents
from aot.ir.dims import symbol
from aot.ir.graph import Attr, Value
from aot.ir.interpreter.interpreter import run
from aot.ir.types import Array, DType
from tests.support.paths import ROOT
from tests.support.plain_builder import Plain, plain


def computed(b: Plain, results: Sequence[Value], *inputs: Array) -> list[Array]:
    for number, result in enumerate(results):
        b.b.output(f"y{number}", result)
    return run(b.b.module().main, list(inputs))


def random(*dims: int) -> Array:
    return np.random.default_rng(len(dims)).standard_normal(dims).astype(np.float32)


def test_a_plain_builder_is_one() -> None:
    builder: GraphBuilder = plain()
    assert builder.scalar(2, DType.F32).type.dims == ()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "aot/frontends/lib").glob("*.py")), ids=lambda p: p.name
)
def test_no_format_is_known(path: Any) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        known = ("aot.frontends.lib", "aot.ir", "aot.ops", "aot.analysis", "aot.base")
        known = (*known, "aot.errors")
        assert all(n.startswith(known) for n in names if n.startswith("aot")), names
        assert not any(n.split(".")[0] == "onnx" for n in names), names


@pytest.mark.parametrize("length", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_onesided", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(length: int, axis: int, is_onesided: bool, parts: int) -> None:
    x = random(5, 8, parts)
    b = plain()
    made = fourier.dft(
        b, b.b.input("x", f"f32[5, 8, {parts}]"), axis, length,
        is_inverse=False, is_onesided=is_onesided,
    )  # fmt: skip
    (y,) = computed(b, [made], x)
    expected = np.fft.fft(x[..., 0] + (1j * x[..., 1] if parts == 2 else 0), length, axis)
    if is_onesided:
        expected = np.take(expected, range(length // 2 + 1), axis)
    np.testing.assert_allclose(y, np.stack([expected.real, expected.imag], -1), atol=2e-5)


def test_a_transform_that_is_too_long_names_the_node() -> None:
    b = plain()
    x = b.b.input("x", "f32[5000, 1]")
    with pytest.raises(CompileError) as caught:
        fourier.dft(b, x, 0, 5000, is_inverse=False, is_onesided=False)
    assert str(caught.value) == "here: the tables of the transform would have 80000 elements"
    z = b.b.input("z", "f32[9, N]")
    with pytest.raises(UnsupportedNodeError) as reason:
        fourier.dft(b, z, 0, 9, is_inverse=False, is_onesided=False)
    assert str(reason.value) == "the last dim depends on the input's shape"


@pytest.mark.parametrize("dims", [(2, 6), (2, 6, 3), (2, 6, 3, 4), (1, 4, 1, 5)])
def test_normalizations(dims: tuple[int, ...]) -> None:
    x, channels = random(*dims), dims[1]
    scale, bias, mean = (random(channels, 1)[:, 0] + n for n in range(3))
    variance = np.abs(scale) + 0.5
    b = plain()
    value = b.b.input("x", f"f32{list(dims)}")
    vectors = [b.constant(v) for v in (scale, bias, mean, variance)]
    batch = normalization.batch_normalization(b, value, *vectors, 1e-3)
    groups = normalization.grouped(b, value, 2)
    group = normalization.scaled(
        b, b.reshape(normalization.standardised(b, groups, (2,), 1e-3), dims), *vectors[:2]
    )
    found = computed(b, [batch, group], x)

    def along(v: Array) -> Array:
        return v.reshape(-1, *[1] * (len(dims) - 2))

    expected = (x - along(mean)) / np.sqrt(along(variance) + 1e-3) * along(scale) + along(bias)
    np.testing.assert_allclose(found[0], expected, atol=1e-4, rtol=1e-4)
    parts = x.reshape(dims[0], 2, -1)
    centred = parts - parts.mean(2, keepdims=True)
    normal = (centred / np.sqrt((centred**2).mean(2, keepdims=True) + 1e-3)).reshape(dims)
    np.testing.assert_allclose(found[1], normal * along(scale) + along(bias), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("is_batch_first", [False, True])
@pytest.mark.parametrize("names", [("tanh", "tanh"), ("tanh", "relu")])
def test_a_layer_of_two_directions(names: tuple[str, str], is_batch_first: bool) -> None:
    """Equal activations are one op, others two; both are what each direction is alone."""
    steps, batch, inputs, hidden = 4, 2, 3, 5
    x, w, r = random(steps, batch, inputs), random(2, hidden, inputs), random(2, hidden, hidden)
    b = plain()
    given = x.transpose(1, 0, 2) if is_batch_first else x
    value = b.b.input("x", f"f32{list(given.shape)}")
    kinds = [activations_of([name], (), ()) for name in names]
    attrs: dict[str, Attr] = {"hidden_size": hidden, "clip": 0.0}
    layer = Layer("rnn", "bidirectional", kinds, attrs, is_batch_first)
    made = recurrent(b, layer, [value, b.constant(w), b.constant(r), None, None, None])
    y, last = computed(b, made, given)
    functions = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0)}
    for direction, name in enumerate(names):
        h, order = np.zeros((batch, hidden)), range(steps)[:: 1 - 2 * direction]
        for step in order:
            h = functions[name](x[step] @ w[direction].T + h @ r[direction].T)
            found = y[:, step, direction] if is_batch_first else y[step, direction]
            np.testing.assert_allclose(found, h, atol=1e-4, rtol=1e-4)
        final = last[:, direction] if is_batch_first else last[direction]
        np.testing.assert_allclose(final, h, atol=1e-4, rtol=1e-4)


def test_an_activation_that_we_lack() -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        activations_of(["tanh", "swoosh"], (), ())
    assert str(caught.value) == "activation swoosh is not supported"


@pytest.mark.parametrize("size", [1, 3, 5, 7, 10, 13])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_along_one_dim(mode: str, size: int) -> None:
    x, b = random(2, 5), plain()
    value = b.b.input("x", "f32[2, 5]")
    axes = resize.by_sizes(b, value, (size,), (1,), "stretch", ())
    (y,) = computed(b, [resize.resized(b, value, resize.Options(mode), axes)], x)
    at = np.arange(size) * 5 / size
    nearest = x[:, np.floor(at).astype(int)]
    linear = [np.interp(at, range(5), row) for row in x]
    np.testing.assert_allclose(y, nearest if mode == "nearest" else linear, atol=1e-5)


def test_sizes_of_a_resize_that_are_wrong() -> None:
    b = plain()
    value = b.b.input("x", "f32[2, 5]")
    for sizes, message in (
        ((1, 2), "sizes has 2 numbers, expected 1"),
        ((-1,), "sizes [-1] are negative"),
    ):
        with pytest.raises(CompileError) as caught:
            resize.by_sizes(b, value, sizes, (1,), "stretch", ())
        assert str(caught.value) == f"here: {message}"


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij, bjk", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,...jk->...ki", [(2, 1, 3, 4), (5, 4, 3)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ii->i", [(4, 4)]),
        ("ij->", [(3, 4)]),
        ("ij,jk,kl->li", [(2, 3), (3, 4), (4, 5)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays, b = [random(*shape) for shape in shapes], plain()
    values = [b.b.input(f"x{i}", f"f32{list(shape)}") for i, shape in enumerate(shapes)]
    (y,) = computed(b, [einsum(b, equation, values)], *arrays)
    np.testing.assert_allclose(y, np.einsum(equation, *arrays), atol=1e-4)


def test_an_einsum_that_does_not_fit_names_the_node() -> None:
    b = plain()
    with pytest.raises(CompileError) as caught:
        einsum(b, "ij->k", [b.b.input("x", "f32[2, 5]")])
    message = "equation 'ij->k' has a result with labels twice or unknown ones"
    assert str(caught.value) == f"here: {message}"


@pytest.mark.parametrize("ranks", [(1, 1), (1, 2), (2, 1), (3, 1), (1, 3), (3, 2)])
def test_products_of_rows_and_columns(ranks: tuple[int, int]) -> None:
    left, right = random(*(2, 3, 4)[-ranks[0] :]), random(*(2, 4, 5)[-ranks[1] :])
    right = random(4) if ranks[1] == 1 else right
    b = plain()
    values = [b.b.input(n, f"f32{list(a.shape)}") for n, a in (("x", left), ("y", right))]
    (y,) = computed(b, [matrix_product(b, *values)], left, right)
    np.testing.assert_allclose(y, left @ right, atol=1e-5)


@pytest.mark.parametrize("ahead", [None, 0, 1])
@pytest.mark.parametrize("behind", [None, 0, 2])
@pytest.mark.parametrize("mask_kind", ["none", "choice", "bias"])
def test_attention(ahead: int | None, behind: int | None, mask_kind: str) -> None:
    past, heads = 2, 3
    q, k, v = random(1, 4, heads * 5), random(1, 6, heads * 5), random(1, 6, heads * 2)
    mask = random(4, 6) if mask_kind == "bias" else random(4, 6) > -0.5
    mask[:, 2:6] = np.where(np.eye(4), 1, mask[:, 2:6])  # a query reads its own key
    b = plain()
    parts = [
        attention.split_heads(b, b.b.input(name, f"f32{list(a.shape)}"), heads, name)
        for name, a in (("q", q), ("k", k), ("v", v))
    ]
    given = None if mask_kind == "none" else b.constant(mask)
    made = attention.attention(b, *parts, given, past=past, ahead=ahead, behind=behind)
    (y,) = computed(b, [attention.merged_heads(b, made)], q, k, v)
    q, k, v = (a.reshape(a.shape[1], heads, -1).transpose(1, 0, 2) for a in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(5)
    own, key = np.arange(4)[:, None] + past, np.arange(6)
    is_read = np.full((4, 6), True)
    if ahead is not None:
        is_read &= key <= own + ahead
    if behind is not None:
        is_read &= own - behind <= key
    if mask_kind == "choice":
        is_read &= mask
    scores = np.where(is_read, scores + (mask if mask_kind == "bias" else 0), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(y[0], expected.transpose(1, 0, 2).reshape(4, -1), atol=1e-5)


def test_heads_that_do_not_divide() -> None:
    b = plain()
    x = b.b.input("x", "f32[1, 4, 10]")
    with pytest.raises(UnsupportedNodeError) as caught:
        attention.split_heads(b, x, 3, "the query")
    assert str(caught.value) == "the query has 10 columns for 3 heads"


def _transposed(x: Array, w: Array, group: int, strides: Sequence[int], dilations: Any) -> Array:
    """The definition: each element of x adds its taps to the image."""
    n, channels, *extents = x.shape
    filters, kernel = w.shape[1], w.shape[2:]
    spans = [
        (e - 1) * s + (t - 1) * d + 1
        for e, s, t, d in zip(extents, strides, kernel, dilations, strict=True)
    ]
    y = np.zeros((n, group * filters, *spans))
    for c in range(channels):
        g = c // (channels // group)
        for at in np.ndindex(*extents):
            for tap in np.ndindex(*kernel):
                to = tuple(
                    i * s + t * d for i, s, t, d in zip(at, strides, tap, dilations, strict=True)
                )
                rows = slice(g * filters, (g + 1) * filters)
                y[(slice(None), rows, *to)] += np.outer(
                    x[(slice(None), c, *at)], w[(c, slice(None), *tap)]
                )
    return y


def _check_transposed(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    strides: tuple[int, ...],
    dilation: int,
    group: int,
    cut: int,
) -> list[str]:
    """The ops of a transposed convolution, which computes what the definition does."""
    spatial = len(strides)
    x, w = random(*shapes[0]), random(*shapes[1])
    dilations = (dilation,) * spatial
    full = transposed_extents(x.shape[2:], w.shape[2:], strides, dilations, (0,) * spatial)
    image = tuple(int(n) - 2 * cut for n in full if isinstance(n, int))
    b = plain()
    options = Transposed(group, strides, dilations, image, (cut,) * spatial)
    value, bias = b.b.input("x", f"f32{list(x.shape)}"), random(w.shape[1] * group)
    made = transposed_convolution(b, value, b.constant(w), b.constant(bias), options)
    (y,) = computed(b, [made], x)
    expected = _transposed(x, w, group, strides, dilations)
    inner = tuple(slice(cut, n - cut) for n in expected.shape[2:])
    expected = expected[(slice(None), slice(None), *inner)] + bias.reshape(-1, *[1] * spatial)
    np.testing.assert_allclose(y, expected, atol=1e-4)
    return [op.name for op in b.b.function().block]


@pytest.mark.parametrize("strides", [(1,), (2,), (3,), (1, 2), (2, 2)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("cut", [0, 1])
def test_transposed_convolutions(
    strides: tuple[int, ...], dilation: int, group: int, cut: int
) -> None:
    spatial = len(strides)
    shapes = (2, 4, *(5, 4)[:spatial]), (4, 3, *(3, 2)[:spatial])
    _check_transposed(shapes, strides, dilation, group, cut)


@pytest.mark.parametrize(
    ("kernel", "strides", "convolutions"),
    [
        ((3,), (2,), 2),
        ((4,), (2,), 1),
        ((5,), (3,), 1),
        ((3, 3), (2, 2), 4),
        ((4, 4), (2, 2), 1),
        ((3, 4), (2, 2), 2),
        ((4, 5), (2, 2), 2),
        ((3, 5), (1, 2), 2),
        ((5, 3), (2, 3), 2),
        ((1, 3), (2, 2), 2),
        ((3, 3, 2), (2, 2, 2), 4),
        ((3, 3, 3), (2, 2, 2), 4),
        ((5, 3, 3), (3, 2, 2), 4),
    ],
)
@pytest.mark.parametrize("cut", [0, 1])
def test_phases_of_transposed_convolutions(
    kernel: tuple[int, ...], strides: tuple[int, ...], convolutions: int, cut: int
) -> None:
    """With filters that fill tiles, phases of fewer taps are convolutions of their own."""
    if cut and min(kernel) == 1:
        kernel = (*kernel[:-1], kernel[-1] + 2)
    shapes = (2, 3, *(4, 3, 2)[: len(kernel)]), (3, 17, *kernel)
    ops = _check_transposed(shapes, strides, 1, 1, cut)
    assert ops.count("conv") == convolutions


@pytest.mark.parametrize("is_upper", [False, True])
def test_pads_that_keep_the_number_of_windows(is_upper: bool) -> None:
    found = windows.same_pads((7, 8, 5), (3, 2, 4), (2, 3, 1), (1, 2, 1), is_upper=is_upper)
    # ceil(7 / 2) = 4 windows span 9; ceil(8 / 3) = 3 span 9; 5 of 4 taps span 8
    less, more = (1, 0, 1), (1, 1, 2)
    assert found == ((*less, *more) if is_upper else (*more, *less))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("is_ceil", [False, True])
def test_norms_of_windows(p: int, is_ceil: bool) -> None:
    x, b = random(1, 2, 8), plain()
    value = b.b.input("x", "f32[1, 2, 8]")
    given = windows.Windows((3,), (2,), (1,), (0, 0))
    if is_ceil:
        given = windows.with_room_for_last(given, value.type.dims[2:])
        assert given.pads == (0, 1)
    (y,) = computed(b, [windows.lp_pool(b, value, given, p)], x)
    starts = range(0, 8 if is_ceil else 6, 2)
    parts = [(np.abs(x[..., i : i + 3]) ** p).sum(-1) ** (1 / p) for i in starts]
    np.testing.assert_allclose(y, np.stack(parts[: 4 if is_ceil else 3], -1), atol=1e-5)


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_deformable_convolution_by_whole_pixels(groups: int, has_mask: bool) -> None:
    """Offsets of whole pixels read pixels: x with zeros around it, at tap + offset."""
    x, w = random(1, 4, 6, 5), random(3, 4, 2, 2)
    draw = np.random.default_rng(5)
    offset = draw.integers(-1, 2, (1, groups, 4, 2, 5, 4))
    mask = (
        draw.random((1, groups, 4, 5, 4), np.float32) if has_mask else np.ones((1, groups, 4, 5, 4))
    )
    b = plain()
    value = b.b.input("x", "f32[1, 4, 6, 5]")
    places = b.constant(offset.reshape(1, -1, 5, 4).astype(np.float32))
    factors = b.constant(mask.reshape(1, -1, 5, 4).astype(np.float32)) if has_mask else None
    options = Deformable(1, groups, (1, 1), (1, 1), (0, 0))
    made = deformable_convolution(b, value, b.constant(w), places, None, factors, options)
    (y,) = computed(b, [made], x)
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    expected = np.zeros((3, 5, 4))
    for c, r, q, tap in np.ndindex(4, 5, 4, 4):
        g = c // (4 // groups)
        row, column = offset[0, g, tap, :, r, q] + (r + tap // 2, q + tap % 2)
        read = padded[0, c, row + 2, column + 2] * mask[0, g, tap, r, q]
        expected[:, r, q] += w[:, c, tap // 2, tap % 2] * read
    np.testing.assert_allclose(y[0], expected, atol=1e-4)


def test_blocks_of_pixels() -> None:
    x, b = random(2, 12, 2, 3), plain()
    value = b.b.input("x", "f32[2, 12, 2, 3]")
    made = [
        pixels.depth_to_space(b, value, 2, is_block_first=is_first) for is_first in (True, False)
    ]
    block, channel, back = computed(b, [*made, pixels.space_to_depth(b, made[0], 2)], x)
    for h, w, c in np.ndindex(2, 2, 3):
        np.testing.assert_array_equal(block[:, c, h::2, w::2], x[:, (h * 2 + w) * 3 + c])
        np.testing.assert_array_equal(channel[:, c, h::2, w::2], x[:, c * 4 + h * 2 + w])
    np.testing.assert_array_equal(back, x)


def test_a_local_response_normalization() -> None:
    x, b = random(2, 5, 3), plain()
    value = b.b.input("x", "f32[2, 5, 3]")
    made = normalization.local_response_normalization(b, value, 4, 0.5, 0.75, 2.0)
    (y,) = computed(b, [made], x)
    squares = np.pad(x**2, ((0, 0), (1, 2), (0, 0)))
    mean = sum(squares[:, i : i + 5] for i in range(4)) / 4
    np.testing.assert_allclose(y, x / (2 + 0.5 * mean) ** 0.75, atol=1e-5)


def test_a_resized_dim_is_known_where_no_run_decides_it() -> None:
    b = plain()
    edge = b.b.input("edge", "f32[]")
    half = Fraction(1, 2)
    known = resize.Axis(1, 8, 4, half, (0.25, 0.75)).known
    assert known == resize.KnownAxis(1, 8, 4, half, (0.25, 0.75))
    n = symbol("N")
    assert resize.Axis(1, n, 4, half).known is None and resize.Axis(1, 8, n, half).known is None
    assert resize.Axis(1, 8, 4, None).known is None
    assert resize.Axis(1, 8, 4, half, (0.0, edge)).known is None
    assert resize.Axis(1, 8, 4, half, ratio=edge).known is None
