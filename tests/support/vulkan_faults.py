"""Builds the Vulkan loader that fails on demand (vulkan_faults.c)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import SUPPORT
from tests.support.runtime_build import build


@cache
def shim_path() -> Path:
    """The loader that fails on demand."""
    source = SUPPORT / "vulkan_faults.c"
    path = build("libfaults.so", [source], ["-O1", "-g", "-fPIC", "-shared", "-ldl"])
    if path is None:
        pytest.skip("gcc is not installed")
    return path
