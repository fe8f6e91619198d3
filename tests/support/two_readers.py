"""What the runtime and the reader in Python say of one module file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aot.errors import CompileError
from aot.link.reader import read_module
from tests.support import runtime_api, vulkan_runtime


@contextmanager
def reading_for_gpus() -> Iterator[None]:
    """With the runtime that has a driver for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime_api, "library", vulkan_runtime.library)
        yield


def runtime_failure(data: bytes) -> str | None:
    """Why the runtime refuses a file; None where it takes it."""
    try:
        runtime_api.Module(data).close()
    except runtime_api.Failed as failed:
        assert failed.status == "malformed"
        return failed.message
    return None


def reader_failure(data: bytes) -> str | None:
    """Why the reader in Python refuses it."""
    try:
        read_module(data)
    except CompileError as error:
        return str(error).removeprefix("module: ")
    return None
