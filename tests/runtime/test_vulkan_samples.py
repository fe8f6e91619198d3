"""Every sample of every op, compiled for vulkan-1.1 and run by the runtime's Vulkan driver.

What `test_op_samples_run` does on CPUs, with its oracle: none is refused, none is left out. A
module holds a few samples, because a program makes the pipelines of all that its variant holds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import aot
from aot.ir.clone import clone_function
from aot.ir.graph import Module
from tests.support.samples_module import CASES, compare, inputs_of, samples_module
from tests.support.vulkan_device import WAYS
from tests.support.vulkan_runtime import running_on

pytestmark = [pytest.mark.vulkan, pytest.mark.slow]

PARTS, MOST = 12, 4
ENTRIES = [f"{name}_{number}" for name, number in CASES]


@cache
def compiled(entries: tuple[str, ...]) -> bytes:
    functions = [clone_function(samples_module().functions[entry]) for entry in entries]
    return aot.compile(Module(functions), targets=["vulkan-1.1"]).to_bytes()


@pytest.mark.parametrize(("driver", "texels"), (*WAYS, ("swiftshader", "on")))
@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_of_every_op(
    part: int, driver: str, texels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_TEXELS", texels)
    chosen = ENTRIES[part::PARTS]
    with running_on(driver, tmp_path):
        for number, entry in enumerate(chosen):
            first = number - number % MOST
            data = compiled(tuple(chosen[first : first + MOST]))
            with aot.load(data, "vulkan", entry=entry) as program:
                compare(entry, list(program(inputs_of(entry)).values()))
