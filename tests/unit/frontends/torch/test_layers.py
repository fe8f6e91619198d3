"""Layers of PyTorch that are kept whole, against torch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.torch_modules import Functions, check, imported, interpreted, module_of


def test_convolutions(t: Any, nn: Any) -> None:
    w, v = t.randn(4, 3, 3, 3), t.randn(6, 1, 3)
    functions: Functions = {
        "plain": lambda x, y: nn.conv2d(x, w, t.ones(4)),
        "padded": lambda x, y: nn.conv2d(x, w, padding=(1, 2), stride=(2, 1)),
        "dilated": lambda x, y: nn.conv2d(x, w, dilation=2),
        "same": lambda x, y: nn.conv2d(x, w, padding="same"),
        "same even": lambda x, y: nn.conv2d(x, w[:, :, :2, :2], padding="same"),
        "valid": lambda x, y: nn.conv2d(x, w, padding="valid"),
        "unbatched": lambda x, y: nn.conv2d(x[0], w),
        "depthwise": lambda x, y: nn.conv1d(y, v, groups=6, padding=1),
        "one dim": lambda x, y: nn.conv1d(y, t.ones(2, 6, 1), stride=2),
        "three dims": lambda x, y: nn.conv3d(x[:, :, None], w[:, :, None], padding=(0, 1, 1)),
        "transposed": lambda x, y: nn.conv_transpose2d(x, w[:3], stride=2, padding=1),
        "transposed extra": lambda x, y: nn.conv_transpose2d(
            x, w[:3], t.ones(3), stride=2, output_padding=1, padding=1
        ),
        "transposed groups": lambda x, y: nn.conv_transpose1d(y, v, groups=6, dilation=2),
        "unfold": lambda x, y: nn.unfold(x, (2, 3), padding=1, stride=2),
        "fold": lambda x, y: (
            nn.fold(y[:, :4, :].repeat(1, 2, 1)[:, :4], (4, 4), 2, stride=2)
            if y.shape[2] == 4
            else nn.fold(nn.unfold(x, 2, stride=2), x.shape[2:], 2, stride=2)
        ),
    }
    x, y = t.randn(2, 3, 8, 6), t.randn(2, 6, 9)
    shapes = {"x0": {0: "n"}, "x1": {0: "n"}}
    check(functions, [x, y], shapes, [[x[:1], y[:1]]], tolerance=1e-5)


def test_convolutions_of_open_images(t: Any, nn: Any) -> None:
    w = t.randn(4, 3, 3, 3)
    functions: Functions = {
        "strided": lambda x: nn.conv2d(x, w, stride=2, padding=1),
        "transposed": lambda x: nn.conv_transpose2d(x, w[:3], stride=2, padding=1),
        "pool": lambda x: nn.max_pool2d(x, 2),
        "average": lambda x: nn.avg_pool2d(x, 3, 1, 1),
        "global": lambda x: nn.adaptive_avg_pool2d(x, 1),
        "twice": lambda x: nn.interpolate(x, scale_factor=2.0, mode="bilinear"),
        "nearest": lambda x: nn.interpolate(x, scale_factor=2.0),
        "shuffle": lambda x: nn.pixel_shuffle(nn.conv2d(x, w, padding=1), 2),
        "like": lambda x: nn.interpolate(nn.max_pool2d(x, 2), x.shape[2:], mode="bilinear"),
    }
    others = [[t.randn(2, 3, 14, 8)], [t.randn(2, 3, 6, 12)]]
    check(functions, [t.randn(2, 3, 8, 10)], {"x0": {2: "2*h", 3: "2*w"}}, others, tolerance=1e-5)


def test_poolings(t: Any, nn: Any) -> None:
    functions: Functions = {
        "max": lambda x: nn.max_pool2d(x, 2),
        "max padded": lambda x: nn.max_pool2d(x, 3, 2, 1),
        "max dilated": lambda x: nn.max_pool2d(x, 2, 1, dilation=2),
        "max ceil": lambda x: nn.max_pool2d(x, 3, 2, ceil_mode=True),
        "max ceil padded": lambda x: nn.max_pool2d(x, 2, 3, 1, ceil_mode=True),
        "max places": lambda x: nn.max_pool2d(x, 2, return_indices=True),
        "max line": lambda x: nn.max_pool1d(x[:, 0], 3, 2),
        "max cube": lambda x: nn.max_pool3d(x[:, None], (1, 2, 2)),
        "max alone": lambda x: nn.max_pool2d(x[0], 2),
        "average": lambda x: nn.avg_pool2d(x, 2),
        "average padded": lambda x: nn.avg_pool2d(x, 3, 2, 1),
        "average inside": lambda x: nn.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "average ceil": lambda x: nn.avg_pool2d(x, 3, 2, ceil_mode=True),
        "average ceil padded": lambda x: nn.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        "average divisor": lambda x: nn.avg_pool2d(x, 2, divisor_override=3),
        "average line": lambda x: nn.avg_pool1d(x[:, 0], 2),
        "average cube": lambda x: nn.avg_pool3d(x[:, None], (1, 3, 2)),
        "adaptive": lambda x: nn.adaptive_avg_pool2d(x, 1),
        "adaptive even": lambda x: nn.adaptive_avg_pool2d(x, (3, 7)),
        "adaptive odd": lambda x: nn.adaptive_avg_pool2d(x, (4, 5)),
        "adaptive none": lambda x: nn.adaptive_avg_pool2d(x, (None, 2)),
        "adaptive max": lambda x: nn.adaptive_max_pool2d(x, (4, 5)),
        "adaptive line": lambda x: nn.adaptive_avg_pool1d(x[:, 0], 2),
        "adaptive larger": lambda x: nn.adaptive_avg_pool2d(x, (12, 14)),
        "power": lambda x: nn.lp_pool2d(x.abs(), 2, 2),
    }
    check(functions, [t.randn(2, 3, 9, 7)], {"x0": {0: "n"}}, [[t.randn(1, 3, 9, 7)]])


def test_normalizations(t: Any, nn: Any) -> None:
    m, v, s, b = t.randn(6), t.rand(6) + 0.5, t.randn(6), t.randn(6)
    functions: Functions = {
        "batch": lambda x: nn.batch_norm(x, m, v, s, b),
        "batch plain": lambda x: nn.batch_norm(x, m, v),
        "batch own": lambda x: nn.batch_norm(x, None, None, s, b, training=True),
        "batch of rows": lambda x: nn.batch_norm(x[:, :, 0, 0], m, v, s, b, eps=0.1),
        "layer": lambda x: nn.layer_norm(x, (4, 5), t.ones(4, 5) * 2, t.ones(4, 5)),
        "layer plain": lambda x: nn.layer_norm(x, (5,)),
        "group": lambda x: nn.group_norm(x, 3, s, b),
        "group plain": lambda x: nn.group_norm(x, 2),
        "instance": lambda x: nn.instance_norm(x, weight=s, bias=b),
        "instance plain": nn.instance_norm,
        "instance given": lambda x: nn.instance_norm(x, m, v, s, b, use_input_stats=False),
        "root": lambda x: nn.rms_norm(x, (5,), t.ones(5) * 3),
        "root plain": lambda x: nn.rms_norm(x, (4, 5), eps=0.1),
        "local": lambda x: nn.local_response_norm(x, 3),
        "cosine": lambda x: nn.cosine_similarity(x[:, 0], x[:, 1]),
    }
    check(functions, [t.randn(3, 6, 4, 5)], {"x0": {0: "n"}}, [[t.randn(2, 6, 4, 5)]], 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_interpolation(t: Any, nn: Any, mode: str) -> None:
    def to(size: Any = None, factor: Any = None, **more: Any) -> Callable[[Any], Any]:
        return lambda x: nn.interpolate(x, size, factor, mode=mode, **more)

    functions: dict[str, Callable[[Any], Any]] = {
        "size": to((7, 12)),
        "twice": to(None, 2.0),
        "less": to(None, 0.5),
        "odd": to(None, (1.7, 0.6)),
        "recomputed": to(None, 1.7, recompute_scale_factor=True),
    }
    if mode in ("bilinear", "bicubic"):
        functions["corners"] = to((9, 4), align_corners=True)
        functions["antialias"] = to((3, 4), antialias=True)
        functions["antialias up"] = to((9, 11), antialias=True)
    check(functions, [t.randn(2, 3, 6, 8)], tolerance=1e-5)


def test_interpolation_of_other_ranks(t: Any, nn: Any) -> None:
    functions: Functions = {
        "line": lambda x, y: nn.interpolate(x, scale_factor=2.0, mode="linear"),
        "nearest line": lambda x, y: nn.interpolate(x, 5),
        "cube": lambda x, y: nn.interpolate(y, (3, 5, 7), mode="trilinear"),
        "nearest cube": lambda x, y: nn.interpolate(y, scale_factor=2.0),
        "corners": lambda x, y: nn.interpolate(x, 9, mode="linear", align_corners=True),
    }
    check(functions, [t.randn(2, 3, 7), t.randn(1, 2, 2, 4, 5)])


def test_grid_samples(t: Any, nn: Any) -> None:
    functions: dict[str, Callable[..., Any]] = {}
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (False, True):
                functions[f"{mode} {padding} {corners}"] = (
                    lambda x, g, m=mode, p=padding, c=corners: nn.grid_sample(x, g, m, p, c)
                )
    functions["affine"] = lambda x, g: nn.affine_grid(g[:, :2, :3, 0], (2, 3, 4, 5), False)
    check(functions, [t.randn(2, 3, 5, 6), t.rand(2, 4, 3, 2) * 2.6 - 1.3], tolerance=2e-5)


def test_attention(t: Any, nn: Any) -> None:
    attend = nn.scaled_dot_product_attention
    q, k = t.randn(2, 4, 5, 8), t.randn(2, 4, 7, 8)
    mask = t.rand(2, 1, 5, 7) > 0.3
    functions: Functions = {
        "plain": lambda q, k, m: attend(q, k, k),
        "scale": lambda q, k, m: attend(q, k, k, scale=0.5),
        "causal": lambda q, k, m: attend(q, q, q, is_causal=True),
        "mask": lambda q, k, m: attend(q, k, k, m | (t.arange(7) == 0)),
        "bias": lambda q, k, m: attend(q, k, k, m.float() * -3),
        "short": lambda q, k, m: attend(q, k, k, m[0, 0].float()),
        "three dims": lambda q, k, m: attend(q[:, 0], k[:, 0], k[:, 0]),
        "three masked": lambda q, k, m: attend(q[:, 0], k[:, 0], k[:, 0], m[:, 0].float()),
        "two dims": lambda q, k, m: attend(q[0, 0], k[0, 0], k[0, 0]),
        "five dims": lambda q, k, m: attend(q[None], k[None], k[None], m[None].float()),
        "grouped": lambda q, k, m: attend(q, k[:, :2], k[:, :2], enable_gqa=True),
    }
    shapes = {"x0": {0: "n"}, "x1": {0: "n"}, "x2": {0: "n"}}
    check(functions, [q, k, mask], shapes, [[q[:1], k[:1], mask[:1]]], tolerance=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "RNN relu"])
def test_recurrent_layers(t: Any, kind: str) -> None:
    from tests.support.torch_modules import assert_close, imported, interpreted

    name, _, nonlinearity = kind.partition(" ")
    for layers, both, first, bias in ((1, False, False, True), (2, True, True, False)):
        more = {"nonlinearity": nonlinearity} if nonlinearity else {}
        layer = getattr(t.nn, name)(
            3, 4, num_layers=layers, bidirectional=both, batch_first=first, bias=bias, **more
        )
        args = [t.randn(2, 5, 3)]
        ours = imported(layer, args, {"input": {0: "n", 1: "m"}})
        for given in (args, [t.randn(3, 6, 3)]):
            found = list(interpreted(ours, given).values())
            wanted = t.utils._pytree.tree_leaves(layer(*given))
            for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
                assert_close(one, other, 1e-5, f"{kind} result {number}")


def test_nearest_elements(t: Any, nn: Any) -> None:
    """Against integers: torch rounds its scale to float32 before it multiplies."""
    for n in (6, 20, 41):
        x = t.arange(n, dtype=t.float32).reshape(1, 1, n)
        functions: Functions = {
            f"{mode} {m}": lambda x, m=m, mode=mode: nn.interpolate(x, m, mode=mode)
            for m in (1, 2, 6, 13, 20, 27)
            for mode in ("nearest", "nearest-exact")
        }
        module = imported(module_of(functions, 1), [x])
        for name, found in interpreted(module, [x]).items():
            mode, m = name.split()[0], int(name.split()[1])
            is_exact = mode == "nearest-exact"
            expected = [(2 * i + 1) * n // (2 * m) if is_exact else i * n // m for i in range(m)]
            assert found.reshape(-1).tolist() == expected, (name, n)
