"""Damaged modules: a status or a safe run, never a crash.

Damage that checksums cover is noticed. Damage with right checksums is libFuzzer's
(test_fuzzers.py), whose target is tested here.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aot.link.module_schema import RULES
from tests.support.cross import CROSS_TARGETS, run_emulated
from tests.support.fuzzers import (
    FOLDER,
    INCLUDES,
    MODE,
    WIDE_HANDLES,
    fuzzer_path,
    module_sources,
    write_inputs,
)
from tests.support.module_rules import (
    ALONE,
    BREAKS,
    CPU,
    HOSTED,
    broken,
    places_of,
    whole_module,
)
from tests.support.module_seeds import busy_module, harmless_code, kept_module
from tests.support.runtime_api import Failed, Module, failure, opened
from tests.support.runtime_build import FUZZ, RUNTIME, build
from tests.support.runtime_modules import (
    DTYPES,
    HEADER_BYTES,
    INPUTS,
    OUTPUTS,
    Assembler,
    ModuleFile,
    Variant,
    entry,
    fbs,
    structure_bytes_of,
    tensor,
)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules that have every field."""
    return write_inputs("module", tmp_path_factory.mktemp("seeds"))


def fuzz(binary: Path, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the fuzzer; what it finds, it leaves in the folder."""
    words = map(str, (f"-artifact_prefix={folder}/", "-max_len=200000", *arguments))
    return subprocess.run([binary, *words], capture_output=True, text=True, check=False)


def test_undamaged_modules_run(tmp_path: Path, seeds: Path) -> None:
    result = fuzz(fuzzer_path("module"), tmp_path, *sorted(seeds.iterdir()))
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stderr.count("Executed ") == len(list(seeds.iterdir()))
    with opened(kept_module()) as program:
        for count in range(1, 7):
            (y,) = program(np.full(4, count, np.float32), np.array(3, np.int64))
            assert y.tolist() == [float(c) for c in range(1, count + 1) for _ in range(4)]
        found = failure(lambda: program(np.zeros(1, np.float32), np.array(3, np.int64)))
        assert found.message == "a cache of 24 rows has no room for 25"


def _far_stores() -> bytes:
    """A GPU's program that fills, stores, copies and loads 2^32 bytes behind where it may."""
    asm = Assembler()
    asm.block()
    asm.emit("RETURN")
    asm.execute()
    far, size, value = asm.register(1 << 32), asm.register(16), asm.register()
    asm.emit("LOAD", value, INPUTS, far, DTYPES["i32"])
    asm.emit("FILL", OUTPUTS, far, size, 7)
    asm.emit("STORE", OUTPUTS, far, value, DTYPES["i32"])
    asm.emit("COPY", OUTPUTS, far, INPUTS, far, size)
    asm.emit("RETURN")
    made = entry(asm.program(), [tensor("x", "f32", 4)], [tensor("y", "f32", 4)])
    return ModuleFile([Variant([made], device=fbs.Device.VULKAN)]).to_bytes()


@pytest.mark.qemu
def test_offsets_beyond_an_address_of_32_bits(tmp_path: Path) -> None:
    """What was checked is used: the offset's low half, in an input or an output. The fake device
    ends the process where a command is outside of a buffer."""
    target = CROSS_TARGETS["arm"]
    if shutil.which(target.emulator) is None:
        pytest.skip(f"{target.emulator} is not installed")
    sources = [*module_sources(), *(FOLDER / name for name in ("fuzz_module.c", "alone/main.c"))]
    flags = ["-O1", "-static", *target.flags, *WIDE_HANDLES, *INCLUDES, *MODE]
    binary = build("aot-fuzz-arm", sources, flags, target.compiler, ["-lpthread", "-ldl"])
    if binary is None:
        pytest.skip(f"{target.compiler} is not installed")
    paths = []
    for tail in range(8):  # what the target chooses, such as the kind of memory, follows from bytes
        path = tmp_path / f"{tail}.aotm"
        path.write_bytes(_far_stores() + bytes([tail]))
        paths.append(path)
    result = run_emulated("arm", [binary, *paths])
    assert (result.returncode, result.stderr) == (0, "")


# Rules without which the runtime would read or write what it must not.
GUARDS = [
    ("Program.arena_bound_bytes must be 0 or at least arena_bytes", CPU),
    ("Executable.spirv must not be empty in a variant for a GPU without a host", ALONE),
    ("Program.scratch_offset must be -1 in a variant for a GPU", HOSTED),
]


@pytest.mark.slow
def test_the_fuzzer_sees_what_rules_prevent(tmp_path: Path) -> None:
    """Without these rules, the modules that break them do what a sanitizer stops."""
    fuzzer_path("module")
    copy = tmp_path / "runtime"
    shutil.copytree(RUNTIME, copy)
    header = copy / "src" / "module_rules.h"
    lines = header.read_text().splitlines()
    kept = [line for line in lines if not any(f'"{message}"' in line for message, _ in GUARDS)]
    assert len(kept) == len(lines) - len(GUARDS)
    header.write_text("\n".join(kept) + "\n")
    binary = tmp_path / "without-rules"
    sources = [
        str(copy / path.relative_to(RUNTIME))
        for path in (*module_sources(), FOLDER / "fuzz_module.c")
    ]
    includes = [f"-I{copy / folder}" for folder in ("include", "src", "drivers/vulkan")]
    flags = [flag for flag in (*FUZZ, *MODE) if not flag.startswith("-I")]
    command = ["clang", "-std=c11", *includes, *flags, *sources, "-lpthread", "-ldl"]
    subprocess.run([*command, "-o", binary], check=True)
    whole = tmp_path / "whole.aotm"
    whole.write_bytes(whole_module())
    assert fuzz(binary, tmp_path, whole).returncode == 0
    for message, variant in GUARDS:
        found = (fuzz(binary, tmp_path, path) for path in _breaking(message, variant, tmp_path))
        reports = (result.stderr for result in found if result.returncode != 0)
        assert any("ERROR: AddressSanitizer" in r or "runtime error" in r for r in reports), message


def _breaking(message: str, variant: int, folder: Path) -> Iterator[Path]:
    """Files that break a rule in a variant, each several times: what else the fuzzer chooses, such
    as the kind of a GPU's memory or the allocation that fails, follows from all bytes, and those
    behind the end mean nothing.
    """
    table, rule = next((t, r) for t, rs in RULES.items() for r in rs if r.message == message)
    for place in places_of(rule, table):
        for number, change in enumerate(BREAKS[message]):
            for tail in range(8 if place[0] == variant else 0):
                path = folder / f"{place[0]}-{place[1]}-{number}-{tail}.aotm"
                path.write_bytes(broken(rule, table, place, change)[1] + bytes([tail]))
                yield path


def status_of(data: bytes) -> str:
    """What opening a file gives."""
    try:
        Module(data).close()
    except Failed as failed:
        return failed.status
    return "ok"


def test_every_truncation_is_noticed() -> None:
    file = busy_module()
    assert {status_of(file[:size]) for size in range(1, len(file))} == {"truncated"}


def test_random_flips_are_noticed() -> None:
    file = bytearray(busy_module())
    end = HEADER_BYTES + structure_bytes_of(bytes(file))
    rng = random.Random(1)
    counts = dict.fromkeys(("checksum", "not_a_module", "version"), 0)
    for _ in range(5000):
        place, bit = rng.randrange(end), 1 << rng.randrange(8)
        file[place] ^= bit
        counts[status_of(bytes(file))] += 1
        file[place] ^= bit
    assert counts["checksum"] > 4500
    # The code's are noticed when it is to run; in what no checksum covers, nothing is.
    for place in range(len(file) - len(harmless_code().image), len(file), 7):
        file[place] ^= 1
        assert failure(lambda: opened(bytes(file), target=b"test").__enter__()).status == "checksum"
        file[place] ^= 1
    file[end + 1] ^= 1
    assert status_of(bytes(file)) == "ok"
