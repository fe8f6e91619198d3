"""Builds the Vulkan loader that fails on demand (vulkan_faults.c), and devices that it makes of
others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import SUPPORT
from tests.support.runtime_build import build


@cache
def shim_path() -> Path:
    """The loader that fails on demand."""
    sources = [SUPPORT / "vulkan_faults.c", SUPPORT / "vulkan_reversed.c"]
    path = build("libfaults.so", sources, ["-O1", "-g", "-fPIC", "-shared", "-ldl"])
    if path is None:
        pytest.skip("gcc is not installed")
    return path


@contextmanager
def unordered_device() -> Iterator[ctypes.CDLL]:
    """Makes devices run dispatches between two barriers in the opposite order, with memory that is
    not coherent, and yields the loader, which counts them."""
    shim = ctypes.CDLL(str(shim_path()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOT_VULKAN_LIBRARY", str(shim_path()))
        shim.faults_incoherent(True)
        shim.faults_reverse(True)
        try:
            yield shim
        finally:
            shim.faults_reverse(False)
            shim.faults_incoherent(False)
