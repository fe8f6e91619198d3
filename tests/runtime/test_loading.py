"""What loading touches: structure and code, never the weights before a kernel reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot.runtime import loader
from tests.support.runtime_api import Module, Program, library_path, opened
from tests.support.runtime_modules import ModuleFile, arena_module

WEIGHTS = 64 << 20
# The system maps what lies around a page that is touched as well, up to a large page.
AROUND = 2 << 20


def resident_bytes(path: Path) -> int:
    """Bytes of a file's mappings that this process has pages for."""
    total, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        field = line.split()
        if "-" in field[0]:
            is_inside = line.endswith(str(path))
        elif field[0] == "Rss:" and is_inside:
            total += 1024 * int(field[1])
    return total


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """A module with 64 MiB of weights, of which its kernels read the first 4000 bytes."""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("the system does not tell which pages are there")
    path = tmp_path / "heavy.aotm"
    file = arena_module()
    weights = np.zeros(WEIGHTS // 4, np.float32)
    weights[:1000] = 3
    path.write_bytes(ModuleFile(file.variants, weights.tobytes()).to_bytes())
    return path


def test_weights_are_not_touched_before_they_are_used(heavy: Path) -> None:
    module = Module(heavy)
    assert 0 < resident_bytes(heavy) <= 2 * AROUND  # header and structure
    program = Program(module)
    loaded = resident_bytes(heavy)
    assert loaded <= 4 * AROUND  # and code
    x = np.ones(500, np.float32)
    program.set_input(0, x)
    program.prepare()
    assert resident_bytes(heavy) == loaded
    program.run()
    assert resident_bytes(heavy) <= loaded + 2 * AROUND
    assert (program.output(0) == 8).all()
    program.close()
    module.close()
    assert resident_bytes(heavy) == 0


def test_the_measure_sees_weights_that_are_read(heavy: Path) -> None:
    with opened(heavy) as program:
        loader_library = loader._library(library_path())
        assert loader_library.aot_module_verify_rodata(program.module.handle, None) == 0
        assert resident_bytes(heavy) >= WEIGHTS
