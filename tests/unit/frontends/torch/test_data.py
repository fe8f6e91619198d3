"""What data decide in modules of PyTorch: sizes, numbers, branches and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aot
from aot.errors import UnsupportedError
from tests.support.torch_modules import imported, interpreted, module_of


def same(found: Any, wanted: Any) -> None:
    """That two trees of tensors are equal, up to roundings."""
    import torch
    from torch.utils import _pytree as pytree

    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-5)


def test_random_tensors_have_their_distributions(t: Any) -> None:
    """Whether their shape is known or not."""
    functions = {
        "rand": t.rand_like,
        "randn": t.randn_like,
        "low": lambda x: t.randint_like(x, -3, 4),
        "words": lambda x: t.randint(5, x.shape),
        "chosen": lambda x: t.bernoulli(x.sigmoid()),
        "half": lambda x: t.bernoulli(x, 0.5),
        "shaped": lambda x: t.randn(x.shape[0], 8) * 2 + t.rand(x.shape[0], 8) * 0,
    }
    module, x = module_of(functions, 1), t.zeros(500, 8)
    for shapes in (None, {"x0": {0: "n"}}):
        found = interpreted(imported(module, [x], shapes), [x])
        expected = module(x)
        for name, array in found.items():
            wanted = expected[name].numpy()
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
            assert abs(array.mean() - wanted.mean()) < 0.15, name
            assert abs(array.std() - wanted.std()) < 0.15, name
            # extremes of floats are by chance
            if name in ("low", "words", "chosen", "half"):
                assert set(np.unique(array)) == set(np.unique(wanted)), name


def test_sizes_that_data_decide(t: Any) -> None:
    class Chooses(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, n: Any) -> Any:
            count = n.item()
            t._check(count >= 0)
            t._check(count <= 4)
            return {
                "places": x.nonzero(),
                "where": t.where(x[0] > 0)[0],
                "chosen": x[x > 0],
                "rows": x[x[:, 0] > 0] * 2,
                "selected": t.masked_select(x, x[0] > 0.5),
                "first": x[:count],
                "numbers": t.arange(count),
                "scaled": x * x.max().item(),
            }

    module, x = Chooses(), t.randn(4, 5)
    program = aot.load(aot.compile(module, (x, t.tensor(3))))
    for given in ((x, t.tensor(3)), (-x.abs(), t.tensor(0)), (x.abs(), t.tensor(4))):
        same(program(*given), module(*given))


def test_values_where_a_mask_holds(t: Any) -> None:
    class Writes(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, row: Any) -> Any:
            mask, some = x > 0, x[:, 0] > 0
            y, z, u, v, w = (x.clone() for _ in range(5))
            y[mask] = x[mask].sqrt()  # one after another
            z[some] = x[some] * 2
            u[some] = row  # the same in all rows
            v[mask] = row[0]
            w.index_put_((some,), x[some].flip(0), accumulate=True)
            return y, z, u, v, w, x.index_put((some,), row[None])

    module, x, row = Writes(), t.randn(4, 5), t.randn(5)
    program = aot.load(aot.compile(module, (x, row)))
    for given in (x, -x.abs(), x.abs(), -x):
        same(program(given, row), module(given, row))


def test_branches_on_data(t: Any) -> None:
    class Branches(t.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = t.nn.Linear(4, 4)

        def forward(self, x: Any, y: Any) -> Any:
            def positive(x: Any, y: Any) -> Any:
                return self.inner(x) + 1, y - 1

            def negative(x: Any, y: Any) -> Any:
                return t.cond(y.sum() > 0, lambda a: a * 2, lambda a: a - x.sum(), (x,)), y * 3

            a, b = t.cond(x.sum() > 0, positive, negative, (x, y))
            return a * 2, b

    module = Branches()
    x, y = t.rand(3, 4), t.rand(2)
    program = aot.load(aot.compile(module, (x, y), dynamic_shapes={"x": {0: "n"}, "y": None}))
    for given in ((x, y), (-x, y), (-x[:2], -y)):
        same(program(*given), module(*given))


def test_loops_on_data(t: Any) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    class Loops(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return while_loop(
                lambda i, x: (i < 5) & (x.sum() < 100),
                lambda i, x: (i + 1, x * 2 + i),
                (t.tensor(0), x),
            )

    module, x = Loops(), t.rand(4)
    program = aot.load(aot.compile(module, (x,)))
    for factor in (1, -1, 20, 1000):
        same(program(x * factor), module(x * factor))


def test_what_a_branch_lacks_is_listed(t: Any) -> None:
    class Lacks(t.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return t.cond(x.sum() > 0, t.special.airy_ai, lambda x: t.randn(3) + x, (x,))

    with pytest.raises(UnsupportedError) as failure:
        aot.compile(Lacks(), (t.rand(3),))
    first, *items = str(failure.value).splitlines()
    assert first == "model: not supported in this model (1):"
    assert (
        "aten.special_airy_ai.default" in items[0]
        and "there is no importer for this op" in items[0]
    )
