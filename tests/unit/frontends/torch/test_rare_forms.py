"""Forms of PyTorch's ops that few models have: numbers as tensors, results of types that are asked
for, extents that are not known, sequences without a batch."""

from __future__ import annotations

from typing import Any

from tests.support.torch_modules import Functions, check


def test_tensors_of_one_number(t: Any) -> None:
    x, at, i = t.tensor(2.5), t.tensor([0, 0]), t.tensor(3)
    functions: Functions = {
        "index_select": lambda x, at, i: t.index_select(x, 0, at[:1]),
        "gather": lambda x, at, i: t.gather(x, 0, i - 3),
        "squeeze": lambda x, at, i: t.squeeze(x, 0),
        "flip": lambda x, at, i: t.flip(x, ()),
        "cumsum": lambda x, at, i: t.cumsum(x, 0),
        "sum": lambda x, at, i: t.sum(x, 0),
        "softmax": lambda x, at, i: t.softmax(x, 0),
        "roll": lambda x, at, i: t.roll(x, 1),
        "transpose": lambda x, at, i: t.transpose(x, 0, -1),
    }
    check(functions, [x, at, i])


def test_results_of_a_type_that_is_asked_for(t: Any) -> None:
    x, i = t.randn(3, 4), t.tensor([[2, -1], [3, 4]])
    functions: Functions = {
        "sum": lambda x, i: t.sum(i, dtype=t.float32),
        "mean": lambda x, i: t.mean(i, dtype=t.float32),
        "prod": lambda x, i: t.prod(i, dtype=t.float32),
        "softmax": lambda x, i: t.softmax(i, 1, dtype=t.float32),
        "log_softmax": lambda x, i: t.log_softmax(x, 0, dtype=t.float32),
        "max of truths": lambda x, i: t.amax(x > 0, 1),
        "min of truths": lambda x, i: t.amin(x > 0, (0, 1)),
        "take": lambda x, i: t.take_along_dim(x, t.abs(i)),
        "tile": lambda x, i: x.tile(()),
        "repeat once": lambda x, i: x.repeat(1, 1),
        "expand": lambda x, i: x.expand(3, 4),
        "rot": lambda x, i: t.rot90(x, 0),
        "real": lambda x, i: t.real(t.complex(x, x + 1)),
        "imaginary": lambda x, i: t.imag(t.complex(x, x + 1)),
        "norm": lambda x, i: t.linalg.vector_norm(x, 2),
        "finite": lambda x, i: t.isfinite(i),
        "divided": lambda x, i: t.div(i, 3, rounding_mode=None),
        "floored": lambda x, i: t.div(i, 3, rounding_mode="floor"),
        "truncated": lambda x, i: t.div(i, 3, rounding_mode="trunc"),
    }
    check(functions, [x, i])


def test_lines_of_an_extent_that_is_not_known(t: Any) -> None:
    x = t.randn(4, 2)
    functions: Functions = {
        "whole": lambda x: t.arange(x.shape[0]) + x.sum().to(t.int64) * 0,
        "from 2": lambda x: t.arange(2, x.shape[0] + 2),
        "in quarters": lambda x: t.arange(0, x.shape[0], 0.5)[:3] + x[:3, 0] * 0,
        "positions": lambda x: x[t.arange(x.shape[0] - 1, -1, -1)],
    }
    check(functions, [x], {"x0": {0: "rows"}}, [[t.randn(7, 2)], [t.randn(3, 2)]])


def test_slices_whose_bounds_are_computed_from_an_extent(t: Any) -> None:
    x, table = t.randn(4, 2), t.randn(20, 2)
    functions: Functions = {
        "last": lambda x, table: table[-x.shape[0] :] + x,
        "but the last": lambda x, table: table[: -x.shape[0]],
        "by the last": lambda x, table: x / x[-1:],
        "by the middle": lambda x, table: x[: x.shape[0] // 2] + x[: x.shape[0] // 2][-1:],
        "none is missing": lambda x, table: table[:1][max(0, 1 - x.shape[0]) :] + x,
    }
    others = [[t.randn(n, 2), table] for n in (2, 7, 19)]
    check(functions, [x, table], {"x0": {0: "rows"}, "x1": None}, others)


def test_recurrent_layers_of_one_sequence(t: Any) -> None:
    """Without a dim of batches: [steps, features], and states of one row."""
    for make, states in ((t.nn.LSTM, 2), (t.nn.GRU, 1)):
        layer = make(3, 4, num_layers=2)
        first = tuple(t.randn(2, 4) for _ in range(states))

        def run(x: Any, *h: Any, layer: Any = layer) -> Any:
            return layer(x, h if len(h) == 2 else h[0])[0]

        check({"layer": run}, [t.randn(5, 3), *first])


def test_open_extents_are_scaled_as_floats_are(t: Any) -> None:
    """Products with decimals are rounded before their floor is taken."""
    grown = t.nn.functional.interpolate
    functions: Functions = {
        f"{scale} {mode}": lambda x, scale=scale, mode=mode: grown(x, None, scale, mode)
        for scale in (1 / 300, 1 / 3, 0.7, 1.3, 2.6)
        for mode in ("nearest", "linear")
    }
    length = t.export.Dim("length", min=900, max=4000)
    others = [[t.arange(float(n)).sin().reshape(1, 1, n)] for n in (900, 901, 910, 1000, 1110)]
    check(functions, [t.ones(1, 1, 1200)], {"x0": {2: length}}, others, tolerance=2e-4)


def test_transforms_of_open_lengths(t: Any) -> None:
    fft = t.fft
    functions: Functions = {
        "rfft": lambda x: t.view_as_real(fft.rfft(x)),
        "fft": lambda x: t.view_as_real(fft.fft(x, norm="ortho")),
        "there and back": lambda x: fft.irfft(
            fft.rfft(x, norm="forward"), x.shape[1], norm="forward"
        ),
        "even": lambda x: fft.irfft(fft.rfft(x)[:, : x.shape[1] // 4 + 1]),
        "inverse": lambda x: fft.ifft(fft.fft(x) * 2, norm="backward").real,
        "columns": lambda x: t.view_as_real(fft.fft2(x, norm="forward")),
    }
    others = [[t.randn(3, length)] for length in (8, 9, 17, 40)]
    check(functions, [t.randn(3, 12)], {"x0": {1: "length"}}, others, tolerance=4e-6)
