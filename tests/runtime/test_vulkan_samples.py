"""Every sample of every op, compiled for vulkan-1.1 and run by the runtime's Vulkan driver.

What `test_op_samples.py` does on CPUs, with its oracle: none is left out, and none is refused but
reductions of 64-bit integers, which a host runs. A
program takes longer to be made than to run: it holds many samples, and a module one program, which
makes the pipelines of all that its variant holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import aot
from tests.support.samples_module import compare, entries, inputs_of
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import running_on
from tests.support.vulkan_samples import MOST, compiled

pytestmark = [pytest.mark.vulkan, pytest.mark.slow]


def ways(number: int) -> list[tuple[str, str, bool]]:
    """A driver, how it reads, and whether an entry point of this number runs so: on both drivers,
    and with texels on one of them."""
    return [
        (driver, texels, (number + at) % 2 == (texels == "on"))
        for at, driver in enumerate(DRIVERS)
        for texels in ("off", "on")
    ]


@pytest.mark.parametrize(
    ("entry", "driver", "texels"),
    [
        pytest.param(entry, driver, texels, marks=[] if runs else pytest.mark.sweep)
        for number, entry in enumerate(entries(MOST))
        for driver, texels, runs in ways(number)
    ],
)
def test_every_sample_of_every_op(
    entry: str, driver: str, texels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_TEXELS", texels)
    cases = entries(MOST)[entry]
    with running_on(driver, tmp_path), aot.load(compiled(entry), "vulkan") as program:
        compare(cases, program(inputs_of(cases)))
