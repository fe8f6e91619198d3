"""Forms of ops that models seldom have, against torch; and those that are refused, each by name.

The ops of aten are called as they are: torch.export leaves no other way to some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aot
from aot.errors import UnsupportedError
from tests.support.torch_modules import Functions, check, module_of


def test_numbers_and_single_elements(t: Any, nn: Any) -> None:
    x, one = t.randn(2, 3, 4), t.tensor(1.5)
    functions: Functions = {
        "round decimals": lambda x, one: t.round(x, decimals=2),
        "round tens": lambda x, one: t.round(x * 40, decimals=-1),
        "view as bits": lambda x, one: x.view(t.int32),
        "view as it is": lambda x, one: x.view(t.float32) + 1,
        "clamp max": lambda x, one: t.clamp_max(x, 0.25),
        "dropout": lambda x, one: nn.dropout(x, 0.5, training=False),
        "nan": lambda x, one: t.isnan(x / (x - x)),
        "roll all": lambda x, one: t.roll(x, 5),
        "shuffle": lambda x, one: nn.pixel_unshuffle(x.reshape(1, 1, 4, 6), 2),
        "take": lambda x, one: t.take(x, t.tensor([[0, 7], [23, 3]])),
        "of one number": lambda x, one: t.sum(one) + t.amax(one) + t.mean(one),
        "all of integers": lambda x, one: (x > -1).to(t.int32).all(dim=1),
        "any of integers": lambda x, one: (x > 1).to(t.int32).any(dim=1),
        "norm": lambda x, one: t.norm(x),
        "norm of columns": lambda x, one: t.norm(x, 2, dim=1),
        "least norm": lambda x, one: t.linalg.vector_norm(x, -float("inf"), dim=2),
        "flip of one": lambda x, one: t.flip(one, []),
        "permuted number": lambda x, one: one.permute([]),
        "squeezed": lambda x, one: x.squeeze(1).unsqueeze(0),
        "upper": lambda x, one: t.triu_indices(3, 4, 1),
        "line": lambda x, one: t.linspace(0.0, 1.0, 5) + one,
        "range of floats": lambda x, one: t.arange(0.5, 3.0, 0.5) * one,
    }
    check(functions, [x, one])


def test_scatters_and_norms(t: Any, nn: Any) -> None:
    x, rows, update = t.randn(4, 3), t.tensor([[0, 1, 2], [3, 3, 0]]), t.randn(2, 3)
    functions: Functions = {
        "add": lambda x, i, u: t.scatter_add(x, 0, i, u),
        "reduce add": lambda x, i, u: t.scatter(x, 0, i, u, reduce="add"),
        "reduce mul": lambda x, i, u: t.scatter(x, 0, i, u, reduce="multiply"),
        "reduce sum": lambda x, i, u: t.scatter_reduce(x, 0, i, u, "sum"),
        "reduce most": lambda x, i, u: t.scatter_reduce(x, 0, i, u, "amax"),
        "number": lambda x, i, u: t.scatter(x, 0, i, 2.5),
        "rms": lambda x, i, u: nn.rms_norm(x, (3,), eps=1e-5),
        "layer": lambda x, i, u: nn.layer_norm(x, (3,), None, u[0]),
        "batch": lambda x, i, u: nn.batch_norm(x, None, None, training=True),
        "native layer": lambda x, i, u: t.native_layer_norm(x, [3], u[0], u[1], 1e-5)[0],
        "native group": lambda x, i, u: t.native_group_norm(
            x.reshape(1, 4, 3), None, None, 1, 4, 3, 2, 1e-5
        )[0],
    }
    check(functions, [x, rows, update])


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "bits of another width": (
        lambda t, x: x.view(t.int16),
        "f32 seen as i16 is not supported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(name: str, t: Any) -> None:
    function, reason = REFUSED[name]
    module = module_of({"y": lambda x: function(t, x)}, 1)
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(module, (t.randn(2, 4),))
    assert [item.rpartition("): ")[2] for item in caught.value.items] == [reason]


def test_a_complex_result_says_what_to_give(t: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(module_of({"y": t.fft.fft}, 1), (t.randn(4),))
    assert caught.value.items == ("output 'y' is complex: give torch.view_as_real of it",)


def test_groups_of_rows(t: Any, nn: Any) -> None:
    """Experts of a mixture: rows in order of their experts, each expert's rows by its matrix."""
    rows, weights = t.randn(7, 8), t.randn(4, 8, 16)
    experts = t.tensor([0, 0, 1, 3, 3, 3, 3])

    def counts(e: Any, most: int) -> Any:
        return t.histc(e.float(), bins=most + 1, min=0, max=most)

    check(
        {
            "counts": lambda x, w, e: counts(e, 3),
            "counts of some": lambda x, w, e: counts(e, 2),
            "parts": lambda x, w, e: t.histc(x, bins=5, min=-1.5, max=0.75),
        },
        [rows, weights, experts],
    )

    def grouped(x: Any, w: Any, e: Any) -> Any:
        ends = t.cumsum(counts(e, 3), 0, dtype=t.int32)
        return t._grouped_mm(x.bfloat16(), w.bfloat16(), ends).float()

    check(
        {"products": grouped},
        [rows, weights, experts],
        {"x0": {0: "rows"}, "x1": None, "x2": {0: "rows"}},
        [[t.randn(3, 8), weights, t.tensor([1, 1, 2])]],
        tolerance=0.02,
    )
    with pytest.raises(UnsupportedError, match="a histogram whose bounds are those of the data"):
        aot.compile(module_of({"parts": lambda x: t.histc(x, bins=5)}, 1), (rows,))


def test_groups_of_rows_as_transformers_has_them(t: Any, nn: Any) -> None:
    """The op of its own that Hugging Face's mixtures are exported with: rows behind the last group
    give zeros."""

    def product(input: Any, weight: Any, offs: Any) -> Any:
        made, start = t.zeros(input.size(0), weight.size(2)), 0
        for number, end in enumerate(offs.tolist()):
            made[start:end] = input[start:end] @ weight[number]
            start = end
        return made

    schema = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    op = t.library.custom_op(
        "transformers::grouped_mm_fallback", product, mutates_args=(), schema=schema
    )
    op.register_fake(lambda x, w, o: t.empty(x.size(0), w.size(2)))
    ends = t.tensor([2, 2, 5], dtype=t.int32)
    check({"products": op}, [t.randn(6, 4), t.randn(3, 4, 5), ends])
