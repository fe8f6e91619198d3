"""Static libraries: linked into a small program, for this machine, emulated ones and a Cortex-M."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_models import CONTROLLED
from models import feeds as model_feeds
from models import model_path, reference
from package_models import HOST_TARGET, MOST_ROWS, Array, expected, run, save_module, steps
from runtime_api import library_path

import aot
from aot import loader
from aot.cli import main
from aot.errors import CompileError, UnsupportedError
from aot.link.image import EntryPointImage
from aot.link.program import Opcode
from aot.link.reader import read_module
from aot.packaging import Package, PackageOptions, package
from aot.packaging.names import identifiers
from aot.packaging.runtime_sources import runtime_sources
from aot.packaging.static_library import LibraryLimits

HERE = Path(__file__).resolve().parent
LOADER_LIMIT = 4096  # bytes of .text on thumbv7em


@dataclass(frozen=True)
class Machine:
    """What builds and runs a small program for a target: a compiler's command, an emulator's."""

    compiler: tuple[str, ...]
    emulator: tuple[str, ...] = ()
    is_board: bool = False


_BOARD_FLAGS = ("-nostdlib", "-ffreestanding", "-DBOARD", "-T", str(HERE / "package_board.ld"))
_CORTEX_M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
MACHINES = {
    HOST_TARGET: Machine(("gcc",)),
    "aarch64-generic": Machine(("aarch64-linux-gnu-gcc", "-static"), ("qemu-aarch64",)),
    "armv7-neon": Machine(
        ("arm-linux-gnueabihf-gcc", "-static", "-marm"), ("qemu-arm", "-cpu", "max")
    ),
    "riscv64": Machine(("riscv64-linux-gnu-gcc", "-static"), ("qemu-riscv64",)),
    "thumbv7em": Machine(
        ("arm-none-eabi-gcc", *_CORTEX_M4, *_BOARD_FLAGS),
        (
            *("qemu-system-arm", "-M", "mps2-an386", "-display", "none", "-monitor", "none"),
            *("-serial", "none", "-chardev", "stdio,id=out", "-semihosting-config"),
            *("enable=on,target=native,chardev=out", "-kernel"),
        ),
        is_board=True,
    ),
}
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
ON_MACHINES = pytest.mark.parametrize("target", MACHINES)


@pytest.fixture(autouse=True)
def use_built_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of this checkout, not an installed one."""
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))


def make_library(module: Path, folder: Path, target: str, name: str = "small") -> Package:
    return package(module, "static-library", folder, PackageOptions((target,), name))


def _bytes_of(array: Array) -> str:
    return ", ".join(map(str, np.ascontiguousarray(array).tobytes())) or "0"


def steps_source(name: str, entry: EntryPointImage, feeds: Sequence[dict[str, Array]]) -> str:
    """steps.h: `run_steps` calls the library on each of the feeds, and says each output."""
    fields = identifiers(t.name for t in entry.inputs)
    outputs = identifiers(t.name for t in entry.outputs)
    upper = name.upper()
    lines = [f'#include "{name}.h"', f"#define ARENA_BYTES {upper}_ARENA_BYTES"]
    body = []
    for field, tensor in zip(outputs, entry.outputs, strict=True):
        size = f"{upper}_OUTPUT_{field.upper()}_ELEMENTS * {tensor.dtype.bytes}u"
        lines.append(f"static _Alignas(8) uint8_t out_{field}[{size} + 1u];")
    if entry.states:
        body.append(f"if ({name}_reset(arena) != AOT_STATIC_OK) return 1;")
    for number, feed in enumerate(feeds):
        arguments = []
        for field, tensor in zip(fields, entry.inputs, strict=True):
            array = feed[tensor.name]
            data = f"in_{number}_{field}"
            lines.append(f"static const _Alignas(8) uint8_t {data}[] = {{{_bytes_of(array)}}};")
            arguments.append(f".{field} = (const void *){data}")
            if any(d.extent is None for d in tensor.dims):
                arguments.append(f".{field}_dims = {{{', '.join(map(str, array.shape))}}}")
        body.append("{")
        body.append(f"const {name}_inputs_t inputs = {{{', '.join(arguments)}}};")
        pointers = ", ".join(f".{field} = (void *)out_{field}" for field in outputs)
        body.append(f"{name}_outputs_t outputs = {{{pointers}}};")
        body.append(f"const int status = (int){name}_run(&inputs, &outputs, arena);")
        body.append("if (status != AOT_STATIC_OK) return 10 + status;")
        for field, tensor in zip(outputs, entry.outputs, strict=True):
            dims = [
                f"outputs.{field}_dims[{axis}]" if d.extent is None else str(d.extent)
                for axis, d in enumerate(tensor.dims)
            ]
            size = " * ".join([f"{tensor.dtype.bytes}u", *(f"(size_t){d}" for d in dims)])
            body.append(f"say(out_{field}, {size});")
        body.append("}")
    head = "static int run_steps(void *arena, void (*say)(const uint8_t *data, size_t bytes)) {"
    return "\n".join([*lines, head, *body, "return 0;", "}", ""])


def run_library(
    module: Path, folder: Path, target: str, feeds: Sequence[dict[str, Array]]
) -> tuple[list[list[bytes]], Path]:
    """The outputs' bytes of each feed, by a program that is linked to the library; and it."""
    machine = MACHINES[target]
    for program in (machine.compiler[0], *machine.emulator[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    make_library(module, folder, target)
    entry = next(v for v in read_module(module).variants if v.target == target).entry_points[0]
    (folder / "steps.h").write_text(steps_source("small", entry, feeds))
    count = len(entry.outputs)
    built = folder / "program"
    run(
        *(*machine.compiler, "-O2", *WARNINGS, f"-I{folder}", HERE / "package_board.c"),
        *(folder / "aot_static.c", folder / "libsmall.a", "-o", built),
        *(["-lgcc"] if machine.is_board else []),
    )
    found = [bytes.fromhex(line) for line in run(*machine.emulator, built).splitlines()]
    assert len(found) == count * len(feeds)
    return [found[n : n + count] for n in range(0, len(found), count)], built


@ON_MACHINES
def test_a_library_keeps_state_and_takes_any_shape_within_bounds(
    tmp_path: Path, target: str
) -> None:
    module = save_module(tmp_path / "m.aotm", list(dict.fromkeys([HOST_TARGET, target])))
    given = [*steps(), np.zeros((0, 8), np.float32)]
    found, _ = run_library(module, tmp_path / "lib", target, [{"x": x} for x in given])
    for output, wanted in zip(found, expected(module)):
        np.testing.assert_allclose(
            np.frombuffer(output[0], np.float32).reshape(wanted.shape), wanted, atol=1e-6
        )
    assert found[-1] == [b""]


CONTROL = ("scan_known", "if_in_loop", "counted_while")


@ON_MACHINES
@pytest.mark.parametrize("name", CONTROL)
def test_a_library_branches_and_loops(tmp_path: Path, name: str, target: str) -> None:
    case = CONTROLLED[name]
    compiled = aot.compile(
        case.model().SerializeToString(),
        targets=list(dict.fromkeys([HOST_TARGET, target])),
        input_shapes={
            key: tuple(f"?<={max(8, n)}" if n != array.shape[-1] else n for n in array.shape)
            for key, array in case.runs[0].items()
        }
        if not case.input_shapes
        else case.input_shapes,
    )
    compiled.save(tmp_path / "m.aotm")
    feeds = [{k: np.asarray(v) for k, v in f.items()} for f in case.runs]
    found, _ = run_library(tmp_path / "m.aotm", tmp_path / "lib", target, feeds)
    with aot.load(tmp_path / "m.aotm") as program:
        for feed, outputs in zip(feeds, found, strict=True):
            wanted = program(feed)
            for tensor, data in zip(program.outputs, outputs, strict=True):
                array = np.frombuffer(data, tensor.numpy_dtype).reshape(wanted[tensor.name].shape)
                np.testing.assert_allclose(array, wanted[tensor.name], rtol=1e-5, atol=1e-5)
