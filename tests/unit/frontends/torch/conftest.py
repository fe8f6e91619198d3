"""torch, for the tests of its importer alone: it takes seconds to import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Each test of torch draws the same numbers, whatever ran before it."""
    if "t" in request.fixturenames:
        request.getfixturevalue("t").manual_seed(0)


@pytest.fixture(scope="session")
def t() -> Iterator[Any]:
    """torch, with one thread and a seed."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'aotc[torch]'")
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def nn(t: Any) -> Any:
    """torch.nn.functional."""
    return t.nn.functional
