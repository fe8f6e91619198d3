"""libFuzzer on what reads bytes from outside (runtime/tests/fuzz), under ASan and UBSan: modules,
states, vocabularies and text, templates, chats, pipeline caches and arrays.

A finding is made again by its seed: `python tests/support/fuzzers.py run NAME --seed SEED`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import fuzzers
from tests.support.fuzzers import FOLDER, FUZZERS, fuzzer_path

SEED = int(os.environ.get("AOT_FUZZ_SEED") or random.SystemRandom().randrange(1, 1 << 31))
GATE_SECONDS = 7
SWEEP_RUNS = 10_000_000
RUNS = {"module": 50_000, "chat": 1000, "cache": 2000}
# Those whose memory is an allocator's, with seeds of each kind among the first.
ALLOCATING = {
    "module": 12,
    "state-growing": 40,
    "text": 30,
    "template": 60,
    "chat": 32,
    "cache": 99,
}


@pytest.mark.parametrize("name", [name for name in FUZZERS if name != "module-32"])
def test_damage_never_crashes(name: str) -> None:
    """The same inputs each time."""
    runs = RUNS.get(name, 20_000)
    found = fuzzers.run(name, 1, runs=runs)
    assert found.status == 0, found.log[-4000:]
    assert f"Done {runs} runs" in found.log


@pytest.mark.gate
@pytest.mark.parametrize("name", FUZZERS)
def test_a_new_seed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{name}: AOT_FUZZ_SEED={SEED}")
    found = fuzzers.run(name, SEED, seconds=GATE_SECONDS)
    assert found.status == 0, found.log[-4000:]
    assert found.runs > 0


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUZZERS)
def test_many_inputs(name: str) -> None:
    found = fuzzers.run(name, SEED, runs=SWEEP_RUNS)
    assert found.status == 0, found.log[-4000:]
    assert found.runs >= SWEEP_RUNS and found.growth < 1e-3


@pytest.mark.parametrize("name", ALLOCATING)
def test_every_allocation_may_fail(name: str, tmp_path: Path) -> None:
    """Allocation n of an input fails, for every n: a status, and no memory is left."""
    seeds = sorted(fuzzers.write_inputs(name, tmp_path / "seeds").iterdir())
    module = FUZZERS[name].module
    if module is not None:
        (tmp_path / "m.aotm").write_bytes(module())
    variables = {"AOT_FUZZ_ALLOCATIONS": "1", "AOT_FUZZ_MODULE": str(tmp_path / "m.aotm")}
    chosen = seeds[:: max(1, len(seeds) // ALLOCATING[name])]
    done = subprocess.run(
        [fuzzer_path(name), f"-artifact_prefix={tmp_path}/", *chosen],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("Executed ") == len(chosen)


@pytest.mark.gate
def test_the_layout_of_oss_fuzz(tmp_path: Path) -> None:
    """Each target runs its seeds with what stands beside it, and nothing else."""
    for name in FUZZERS:
        fuzzer_path(name)
    subprocess.run(
        [FOLDER / "build.sh"],
        env=os.environ | {"OUT": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin"},
        check=True,
    )
    targets = [path for path in tmp_path.iterdir() if path.suffix == "" and path.is_file()]
    assert len(targets) == len(FUZZERS) - 1  # 32 bits are another build
    for target in targets:
        seeds = tmp_path / f"{target.name}-seeds"
        zipfile.ZipFile(f"{target}_seed_corpus.zip").extractall(seeds)
        options = dict(line.split(" = ") for line in _lines(target) if " = " in line)
        words = [f"-{key}={value}" for key, value in options.items()]
        done = subprocess.run(
            [target, "-runs=0", *words, seeds], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]


def _lines(target: Path) -> list[str]:
    return Path(f"{target}.options").read_text().splitlines()


def test_what_is_found_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read behind the input, a leak, and work without end."""
    faults = {
        "read": ("volatile uint8_t s = d[n + 1]; (void)s;", "AddressSanitizer"),
        "leak": ("void *volatile p = malloc(n + d[0]); p = NULL; (void)p;", "LeakSanitizer"),
        "hang": ("for (volatile unsigned i = 0; i < 1 || d[0] < 255 || n > 0; ++i) {}", "timeout"),
    }
    for name, (fault, message) in faults.items():
        source = tmp_path / f"{name}.c"
        source.write_text(
            "#include <stdint.h>\n#include <stdlib.h>\n"
            "int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n);\n"
            f"int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) {{\n"
            f"  if (n == 0) return 0;\n  {fault}\n  return 0;\n}}\n"
        )
        own = replace(FUZZERS["npy"], source=str(source), sources=list)
        monkeypatch.setitem(FUZZERS, name, own)
        monkeypatch.setattr(fuzzers, "MOST_SECONDS", 1)
        found = fuzzers.run(name, 1, runs=1000)
        assert found.status != 0 and message in found.log


def test_growth_is_what_the_last_third_adds() -> None:
    log = "#2\tINITED cov: 10 ft: 10\n#60\tNEW    cov: 90 ft: 91\n#70\tNEW    cov: 100 ft: 120\n"
    found = fuzzers.outcome_of(0, log + "#90\tDONE   cov: 100 ft: 120\nDone 90 runs in 3 second(s)")
    assert (found.runs, found.edges, found.growth) == (90, 100, 0.1)
