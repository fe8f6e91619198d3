"""libFuzzer on state files (runtime/tests/fuzz/state), under ASan and UBSan: a file that is none
leaves the program as it was, and one with right checksums never takes it out of its memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aot
from tests.support.control_lowering import compiled
from tests.support.control_sources import CACHE, MIXED
from tests.support.runtime_build import RUNTIME, build_fuzzer, library_sources

HEADER_BYTES = 48


def _fuzzer() -> Path:
    sources = [*library_sources(), RUNTIME / "tests" / "fuzz" / "state" / "fuzz_state.c"]
    mode = ["-DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION"]  # no kernel runs
    return build_fuzzer("aot-fuzz-state", sources, mode, ["-lpthread"])


def _states(module: Path, path: Path) -> Iterator[bytes]:
    """Files of no rows, of two, and of as many as the program has no room for."""
    files = []
    with aot.load(module) as program:
        for _ in range(2):
            program.save_state(path)
            files.append(path.read_bytes())
            shapes = [[d if isinstance(d, int) else 2 for d in t.dims] for t in program.inputs]
            program.run([np.zeros(shape, np.float32) for shape in shapes])
        room = program.state_capacity
    yield from files
    empty, two = files
    length = two.index((2).to_bytes(8, "little"), HEADER_BYTES)
    row = (len(two) - len(empty)) // 2
    for rows in (room, room + 1, 10 * room):
        head = empty[:length] + rows.to_bytes(8, "little") + empty[length + 8 :]
        yield head + bytes(rows * row)


@pytest.mark.parametrize("source", [CACHE, MIXED], ids=["growing", "mixed"])
@pytest.mark.parametrize("runs", [20_000, pytest.param(5_000_000, marks=pytest.mark.sweep)])
def test_any_file_is_a_state_or_refused(source: str, runs: int, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    module = tmp_path / "m.aotm"
    module.write_bytes(compiled(source).to_bytes())
    for number, state in enumerate(_states(module, tmp_path / "s")):
        for how in range(8):  # how much of the header the target makes right
            (seeds / f"{number}-{how}").write_bytes(bytes([how]) + state)
    command = [_fuzzer(), f"-artifact_prefix={tmp_path}/", "-max_len=2000", "-seed=1"]
    result = subprocess.run(
        [*command, f"-runs={runs}", seeds],
        env=os.environ | {"AOT_FUZZ_MODULE": str(module)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert f"Done {runs} runs" in result.stderr
