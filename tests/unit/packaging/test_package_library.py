"""Static libraries: linked into a small program, for this machine, emulated ones and a Cortex-M."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.cli.main import main
from aot.errors import CompileError, UnsupportedError
from aot.link.image import EntryPointImage
from aot.link.program import Opcode
from aot.link.reader import read_module
from aot.packaging import Package, PackageOptions, package
from aot.packaging.names import identifiers
from aot.packaging.runtime_sources import runtime_sources
from aot.packaging.static_library import LibraryLimits
from aot.runtime import loader
from tests.support.control_models import CONTROLLED
from tests.support.models import feeds as model_feeds
from tests.support.models import model_path, reference
from tests.support.package_models import (
    HOST_TARGET,
    MOST_ROWS,
    Array,
    expected,
    run,
    save_module,
    steps,
)
from tests.support.paths import SUPPORT
from tests.support.runtime_api import library_path

LOADER_LIMIT = 4096  # bytes of .text on thumbv7em


@dataclass(frozen=True)
class Machine:
    """What builds and runs a small program for a target: a compiler's command, an emulator's."""

    compiler: tuple[str, ...]
    emulator: tuple[str, ...] = ()
    is_board: bool = False


_BOARD_FLAGS = ("-nostdlib", "-ffreestanding", "-DBOARD", "-T", str(SUPPORT / "package_board.ld"))
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
ON_MACHINES = pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=[pytest.mark.qemu] if machine.emulator else [])
        for name, machine in MACHINES.items()
    ],
)


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
    names, written = [t.name for t in entry.inputs], written_inputs(entry)
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
            const = "" if tensor.name in written else "const "
            lines.append(f"static {const}_Alignas(8) uint8_t {data}[] = {{{_bytes_of(array)}}};")
            arguments.append(f".{field} = ({const}void *){data}")
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
        for tensor_name in written:
            data = f"in_{number}_{fields[names.index(tensor_name)]}"
            body.append(f"say({data}, sizeof {data});")
        body.append("}")
    head = "static int run_steps(void *arena, void (*say)(const uint8_t *data, size_t bytes)) {"
    return "\n".join([*lines, head, *body, "return 0;", "}", ""])


def written_inputs(entry: EntryPointImage) -> list[str]:
    return [entry.inputs[number - 1].name for number in entry.program.updates if number > 0]


def run_library(
    module: Path, folder: Path, target: str, feeds: Sequence[dict[str, Array]]
) -> tuple[list[list[bytes]], Path]:
    """The outputs' bytes of each feed, then those of inputs that are written, by a program that is
    linked to the library; and it."""
    machine = MACHINES[target]
    for program in (machine.compiler[0], *machine.emulator[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    make_library(module, folder, target)
    entry = next(v for v in read_module(module).variants if v.target == target).entry_points[0]
    (folder / "steps.h").write_text(steps_source("small", entry, feeds))
    count = len(entry.outputs) + len(written_inputs(entry))
    built = folder / "program"
    run(
        *(*machine.compiler, "-O2", *WARNINGS, f"-I{folder}", SUPPORT / "package_board.c"),
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


@ON_MACHINES
def test_a_library_tells_the_shapes_that_data_decide(tmp_path: Path, target: str) -> None:
    """Room for the largest is the caller's; a run says how much of it there is."""
    b = Builder()
    x, count = b.input("x", "f32[9]"), b.input("count", "i64[]")
    b.op("extent", count, dim="n0", origin="count")
    b.assume("min(n0, 9)", "n0", "count")
    part = b.op("slice", x, starts=(0,), stops=("n0",), steps=(1,))
    b.output("y", b.op("exp", b.op("concat", part, part, axis=0)))
    b.output("sum", b.op("reduce_sum", part, axes=(0,), keepdims=False))
    targets = list(dict.fromkeys([HOST_TARGET, target]))
    aot.compile(b.module(), targets=targets).save(tmp_path / "m.aotm")
    values = np.linspace(-1, 1, 9, dtype=np.float32)
    feeds = [{"x": values, "count": np.array(n, np.int64)} for n in (4, 0, 9)]
    found, _ = run_library(tmp_path / "m.aotm", tmp_path / "lib", target, feeds)
    for (y, total), feed in zip(found, feeds, strict=True):
        chosen = values[: int(feed["count"])]
        wanted = np.exp(np.concatenate([chosen, chosen]))
        np.testing.assert_allclose(np.frombuffer(y, np.float32), wanted, rtol=1e-5)
        np.testing.assert_allclose(np.frombuffer(total, np.float32), chosen.sum(), atol=1e-5)


@ON_MACHINES
def test_a_library_writes_inputs_that_the_model_writes(tmp_path: Path, target: str) -> None:
    """Of a fixed and of an open shape; what is only read stays constant."""
    b = Builder()
    x, n, y = b.input("x", "f32[3, 2]"), b.input("n", "f32[N]"), b.input("y", "f32[3, 2]")
    b.output("before", b.op("relu", x))
    b.op("assign", x, b.op("add", x, y))
    b.op("assign", n, b.op("mul", n, 2.0))
    b.output("after", b.op("relu", x))
    b.assume("min(N, 4)", "N", "n")
    targets = list(dict.fromkeys([HOST_TARGET, target]))
    aot.compile(b.module(), targets=targets).save(tmp_path / "m.aotm")
    values = np.arange(-3, 3, dtype=np.float32).reshape(3, 2)
    row = np.arange(3, dtype=np.float32)
    feed = {"x": values, "n": row, "y": values + 2}
    found, _ = run_library(tmp_path / "m.aotm", tmp_path / "lib", target, [feed])
    arrays = [np.frombuffer(data, np.float32) for data in found[0]]
    after = 2 * values + 2
    wanted = [np.maximum(values, 0), np.maximum(after, 0), after, 2 * row, after, 2 * row]
    for array, values in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(array, values.reshape(-1))


# ---- real models on a board ----


@pytest.mark.models
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["silero_vad_16k", "oww_alexa"])
def test_a_real_model_runs_on_a_cortex_m(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = model_feeds(name)
    compiled = aot.compile(
        model_path(name),
        targets=("thumbv7em",),
        input_shapes={key: array.shape for key, array in given.items()},
    )
    compiled.save(tmp_path / "m.aotm")
    found, built = run_library(tmp_path / "m.aotm", tmp_path / "lib", "thumbv7em", [given])
    wanted = reference(name)
    outputs = compiled.image.variants[0].entry_points[0].outputs
    for tensor, data in zip(outputs, found[0], strict=True):
        array = np.frombuffer(data, wanted[tensor.name].dtype).reshape(wanted[tensor.name].shape)
        np.testing.assert_allclose(array, wanted[tensor.name], rtol=1e-4, atol=1e-4)
    sizes = run("arm-none-eabi-size", built).splitlines()[1].split()
    made = make_library(tmp_path / "m.aotm", tmp_path / "lib", "thumbv7em")
    with capsys.disabled():
        print(f"\n{name} on a Cortex-M4: flash {sizes[0]}, arena {made.facts['arena_bytes']} bytes")
    # weights stay in flash: RAM is the arena, what comes out, and nothing else
    assert int(sizes[1]) == 0
    outputs_bytes = sum(len(data) for data in found[0])
    assert int(sizes[2]) <= made.facts["arena_bytes"] + outputs_bytes + 64 * len(outputs)


# ---- the loader ----


def test_the_loader_is_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("arm-none-eabi-gcc is not installed")
    source = runtime_sources().root / "packaging/static/aot_static.c"
    built = tmp_path / "loader.o"
    run("arm-none-eabi-gcc", "-Os", *_CORTEX_M4, *WARNINGS, "-c", source, "-o", built)
    text = int(run("arm-none-eabi-size", built).splitlines()[1].split()[0])
    with capsys.disabled():
        print(f"\nstatic library's loader on thumbv7em: {text} bytes of .text")
    assert text <= LOADER_LIMIT
    undefined = set(run("arm-none-eabi-nm", "-u", built).split()) - {"U"}
    # of the compiler's own library, and what compilers may make of loops
    assert undefined <= {"__aeabi_ldivmod", "memset", "memcpy", "memmove"}


def test_the_loader_knows_the_instruction_set() -> None:
    source = (runtime_sources().root / "packaging/static/aot_static.c").read_text()
    names = re.findall(r"\bOP_(\w+),", source)
    # the last ones stand in programs of GPUs only
    assert names == [o.name for o in sorted(Opcode, key=int) if o < Opcode.TO_HOST]


# ---- archives and objects ----


def test_a_library_is_what_binutils_expect(tmp_path: Path) -> None:
    module = save_module(tmp_path / "m.aotm", [HOST_TARGET])
    made = make_library(module, tmp_path / "lib", HOST_TARGET)
    archive = made.folder / "libsmall.a"
    assert run("ar", "t", archive) == "small.o\n"
    symbols = run("nm", "--print-armap", archive)
    assert "small_code in small.o" in symbols and "small_program in small.o" in symbols
    run("ar", "x", archive.resolve(), cwd=tmp_path)
    report = run("readelf", "--wide", "--sections", "--symbols", "--relocs", tmp_path / "small.o")
    assert "There are no relocations" in report
    assert re.search(r"\.rodata\.small_weights +PROGBITS +0+ [0-9a-f]+ [0-9a-f]+ 00 +A ", report)
    assert re.search(r"\.text\.small_code +PROGBITS +0+ [0-9a-f]+ [0-9a-f]+ 00 +AX ", report)
    assert "GNU-stack" in report


def test_a_library_for_apple(tmp_path: Path) -> None:
    """LLVM, which reads what Apple's linker reads, finds our bytes where they should be."""
    module = save_module(tmp_path / "m.aotm", ["aarch64-apple"])
    made = make_library(module, tmp_path / "lib", "aarch64-apple")
    data = (made.folder / "libsmall.a").read_bytes()
    image = read_module(module)
    found = {}
    at = data.index(struct.pack("<I", 0xFEEDFACF))
    assert at % 8 == 0
    for section in llvm.ObjectFileRef.from_data(data[at:]).sections():
        found[section.name()] = (section.address(), section.data())
    assert found[b"__text"] == (0, image.variants[0].code)
    assert found[b"__const"][1].startswith(image.rodata)
    assert found[b"__const"][0] % 64 == 0
    assert b"_small_code\0_small_weights\0_small_program\0" in data[:at]
    members = re.findall(rb"#1/(\d+) +0 +0 +0 +100644 +(\d+) *`\n", data)
    assert 8 + sum(60 + int(size) for _, size in members) == len(data)


def test_a_library_is_the_same_from_anywhere(tmp_path: Path) -> None:
    module = save_module(tmp_path / "m.aotm", [HOST_TARGET, "thumbv7em"])
    one = make_library(module, tmp_path / "one", "thumbv7em")
    other = make_library(module, tmp_path / "deeper" / "other", "thumbv7em")
    assert sorted(one.files) == ["aot_static.c", "aot_static.h", "libsmall.a", "small.h"]
    for name in one.files:
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


def test_the_header_is_c_and_cpp(tmp_path: Path) -> None:
    module = save_module(tmp_path / "m.aotm", [HOST_TARGET])
    made = make_library(module, tmp_path / "lib", HOST_TARGET)
    for compiler, suffix, standard in (("gcc", "c", "-std=c11"), ("g++", "cpp", "-std=c++11")):
        path = tmp_path / f"x.{suffix}"
        path.write_text(
            '#include "small.h"\n#include "small.h"\n'
            "static const int shape[] = {SMALL_OUTPUT_THE_SUM_RANK, SMALL_INPUT_X_ELEMENTS};\n"
            "int use(void);\nint use(void) { return shape[0] + (int)SMALL_ARENA_BYTES; }\n"
        )
        flags = (standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
        run(compiler, *flags, f"-I{made.folder}", path)
    text = (made.folder / "small.h").read_text()
    assert f"#define SMALL_INPUT_X_ELEMENTS {8 * MOST_ROWS}" in text
    assert "small_reset(void *arena)" in text


def test_a_merged_module_has_functions_for_each_model(tmp_path: Path) -> None:
    paths = [
        save_module(tmp_path / f"{name}.aotm", [HOST_TARGET], entry_name=name)
        for name in ("first", "second")
    ]
    aot.merge(paths).save(tmp_path / "both.aotm")
    made = make_library(tmp_path / "both.aotm", tmp_path / "lib", HOST_TARGET, "both")
    text = (made.folder / "both.h").read_text()
    assert "both_first_run(" in text and "both_second_run(" in text
    assert text.count("_code[]") == 1


def _loader_status(tmp_path: Path, call: str) -> int:
    """The status that the loader gives to one call."""
    module = save_module(tmp_path / "m.aotm", [HOST_TARGET])
    made = make_library(module, tmp_path / "lib", HOST_TARGET)
    (tmp_path / "main.c").write_text(
        '#include "small.h"\n'
        "static _Alignas(64) uint8_t arena[SMALL_ARENA_BYTES + 64];\n"
        "static float x[64], y[64];\n"
        "int main(void) {\n"
        "  small_inputs_t in = {.x = x, .x_dims = {2, 8}};\n"
        "  small_outputs_t out = {.the_sum = y};\n"
        "  if (small_reset(arena) != AOT_STATIC_OK) return 99;\n"
        f"  return (int)({call});\n}}\n"
    )
    import subprocess

    program = tmp_path / "program"
    sources = (tmp_path / "main.c", made.folder / "aot_static.c", made.folder / "libsmall.a")
    sanitize = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    run("gcc", "-g", *sanitize, f"-I{made.folder}", *sources, "-o", program)
    return subprocess.run([program], check=False).returncode


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ("small_run(&in, &out, arena)", 0),
        ("small_run(&in, &out, arena + 8)", 2),
        ("small_run(&in, &out, NULL)", 2),
        (f"(in.x_dims[0] = {MOST_ROWS + 1}, small_run(&in, &out, arena))", 3),
        ("(in.x_dims[0] = -1, small_run(&in, &out, arena))", 3),
        ("(in.x_dims[1] = 7, small_run(&in, &out, arena))", 3),
    ],
)
def test_the_loader_refuses(tmp_path: Path, call: str, status: int) -> None:
    assert _loader_status(tmp_path, call) == status


# ---- what is refused when packaging ----


def test_limits_name_what_is_large(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = save_module(tmp_path / "m.aotm", [HOST_TARGET])
    base = ["package", str(module), "--format", "static-library", "-o", str(tmp_path / "lib")]
    assert main([*base, "--max-arena", "100"]) == 1
    text = capsys.readouterr().err
    found = re.fullmatch(
        r"aotc: error: --max-arena is 100, the library needs (\d+) bytes: (\d+) for the tensors "
        r"that are needed at one time, (\d+) for scratch, (\d+) for the loader"
        r"(, .+ alone reads and writes \d+)*\n",
        text,
    )
    assert found and sum(map(int, found.groups()[1:4])) <= int(found[1])
    assert main([*base, "--max-flash", "100"]) == 1
    text = capsys.readouterr().err
    assert re.match(r"aotc: error: --max-flash is 100, the library needs \d+ bytes: weights ", text)
    assert "code " in text and "programs " in text
    assert not (tmp_path / "lib").exists()
    assert main([*base, "--max-arena", found[1], "--max-flash", "1000000"]) == 0
    assert f"{int(found[1]):,}" in capsys.readouterr().out


def test_open_shapes_without_bounds_are_listed(tmp_path: Path) -> None:
    module = save_module(tmp_path / "m.aotm", [HOST_TARGET], input_shapes={})
    with pytest.raises(UnsupportedError) as caught:
        make_library(module, tmp_path / "lib", HOST_TARGET)
    assert caught.value.items == (
        "input 'x': axis 0, N, has no upper bound",
        "output 'the sum': axis 0, N, has no upper bound",
    )


def test_one_variant_must_be_chosen(tmp_path: Path) -> None:
    module = save_module(tmp_path / "m.aotm", [HOST_TARGET, "thumbv7em", "aarch64-apple"])
    with pytest.raises(CompileError, match="holds one variant, the module has .*: choose with"):
        package(module, "static-library", tmp_path / "lib")


def test_limits_are_of_what_is_written(tmp_path: Path) -> None:
    module = save_module(tmp_path / "m.aotm", ["thumbv7em"])
    options = PackageOptions(limits=LibraryLimits(arena_bytes=10_000, flash_bytes=10_000))
    made = package(module, "static-library", tmp_path / "lib", options)
    facts: dict[str, Any] = dict(made.facts)
    parts = facts["code_bytes"] + facts["weights_bytes"] + facts["program_bytes"]
    assert facts["flash_bytes"] == parts
    header = (made.folder / "m.h").read_text()
    assert f"#define M_ARENA_BYTES {facts['arena_bytes']}u" in header
    # an Arm object of 32 bits, for the current ABI
    data = (made.folder / "libm.a").read_bytes()
    ident = data[data.index(b"\x7fELF") :]
    assert struct.unpack_from("<HH", ident, 16) == (1, 40)
    assert struct.unpack_from("<I", ident, 36) == (0x05000000,)
