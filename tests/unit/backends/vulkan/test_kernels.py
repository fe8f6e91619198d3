"""Kernels written by hand run on every software driver and give numpy's results."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from aot.backends.vulkan.shader import Shader
from aot.kernels.ir.nodes import BufferClass
from tests.support import vulkan_device, vulkan_running
from tests.support.vulkan_case import Array, Case
from tests.support.vulkan_checks import assert_close
from tests.support.vulkan_kernels import CASES

pytestmark = pytest.mark.vulkan


@cache
def case(name: str) -> Case:
    return CASES[name]()


@cache
def shader(name: str) -> Shader:
    return vulkan_running.build(case(name).kernel)


@cache
def result(name: str, driver: str) -> dict[str, Array]:
    made = case(name)
    return vulkan_running.run_on(driver, made.kernel, made.arrays, made.params, shader=shader(name))


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("name", CASES)
def test_kernel_gives_numpys_results(name: str, driver: str) -> None:
    actual = result(name, driver)
    for output, expected in case(name).expected.items():
        assert_close(actual[output], expected, case(name).tolerance)


@pytest.mark.parametrize("driver", vulkan_device.DRIVERS)
@pytest.mark.parametrize("name", CASES)
def test_texels_are_what_storage_buffers_are(name: str, driver: str) -> None:
    """The same bits, whichever of the two shaders runs."""
    made, plain = case(name), shader(name)
    if plain.texel is None:
        read_only = (BufferClass.CONSTANTS, BufferClass.INPUTS)
        assert all(b.binding not in read_only for b in made.kernel.buffers)
        return
    found = vulkan_running.run_on(driver, made.kernel, made.arrays, made.params, shader=plain.texel)
    for output, expected in result(name, driver).items():
        np.testing.assert_array_equal(found[output].view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("name", CASES)
def test_drivers_agree(name: str) -> None:
    first, second = (result(name, driver) for driver in vulkan_device.DRIVERS)
    assert first.keys() == second.keys()
    for output, expected in first.items():
        assert_close(second[output], expected, 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_shaders_stay_small(name: str) -> None:
    """Drivers' compile time grows worse than linearly beyond some 2,600 words."""
    assert len(shader(name).words) // 4 < 2600
