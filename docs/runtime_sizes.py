"""Measures what the runtime takes, part by part, and writes docs/internals/runtime-sizes.md.

    python docs/runtime_sizes.py [--check]

Builds with the compilers that are here: gcc, aarch64-linux-gnu-gcc, and the one that packages for
WebAssembly are made with. With --check the page must tell of the same parts; its numbers follow the
compilers' versions, which it names.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ROOT / "runtime"
PAGE = ROOT / "docs" / "internals" / "runtime-sizes.md"
sys.path.insert(0, str(ROOT))

COMPILERS = {"x86-64": "gcc", "arm64": "aarch64-linux-gnu-gcc"}
FLAGS = [
    *("-std=c11", "-Os", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    *("-fno-asynchronous-unwind-tables", f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"),
    '-DAOT_VERSION="0.1.0"',
]
THREADS = ("drivers/cpu/workers.c", "drivers/cpu/sharing.c", "drivers/cpu/host_threads.c")
# By what a row is called: its files, less those of other rows.
PARTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "loader": (("src/*.c",), ("src/os_threads_posix.c",)),
    "CPU driver": (("drivers/cpu/*.c",), THREADS),
    "threads": ((*THREADS, "src/os_threads_posix.c"), ()),
    "contents, strides, asynchronous runs": (("extras/*.c",), ()),
    "cores": (("cores/*.c",), ()),
    "states": (("state/*.c",), ()),
    "text": (("text/*.c",), ()),
    "Vulkan driver": (("drivers/vulkan/*.c",), ()),
}
# What applications link, by the parts that they call.
MINIMAL = """
#include "aot/aot.h"
int main(int count, char **arguments) {
  aot_module_t *module = NULL;
  aot_program_t *program = NULL;
  const int64_t dims[2] = {1, 8};
  static float x[8];
  const aot_tensor_t input = {sizeof input, AOT_DTYPE_F32, 2, dims, x, sizeof x};
  aot_tensor_t output = {.size = sizeof output};
  const aot_program_options_t options = {.size = sizeof options, .threads = (uint32_t)count};
  if (aot_module_open_path(arguments[1], NULL, NULL, &module) != AOT_OK ||
      aot_program_create(module, &options, NULL, &program) != AOT_OK ||
      aot_program_set_input(program, 0, &input, NULL) != AOT_OK ||
      aot_program_run(program, NULL) != AOT_OK ||
      aot_program_get_output(program, 0, NULL, &output) != AOT_OK)
    return 1;
  return ((const float *)output.data)[0] > 0;
}
"""
LINKED = {
    "an application, one thread": ("-DAOT_THREADS=0",),
    "an application, threads": ("-pthread",),
    "an application, threads and Vulkan": ("-pthread", "-DAOT_VULKAN=1"),
}


def run(*command: object) -> str:
    """What a command prints."""
    made = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{made.stderr}")
    return made.stdout


def files_of(patterns: Sequence[str], without: Sequence[str] = ()) -> list[Path]:
    """The sources of a part."""
    found = sorted(path for pattern in patterns for path in RUNTIME.glob(pattern))
    return [path for path in found if path.relative_to(RUNTIME).as_posix() not in without]


def sections(compiler: str, *paths: Path) -> tuple[int, int]:
    """Bytes of code and of constant data in objects or a program."""
    text = data = 0
    for line in run(compiler.replace("gcc", "size"), "-A", *paths).splitlines():
        found = re.match(r"\.(text|rodata|data\.rel\.ro)\S*\s+(\d+)", line)
        if found is not None and found[1] == "text":
            text += int(found[2])
        elif found is not None:
            data += int(found[2])
    return text, data


def part_sizes(compiler: str, files: Sequence[Path], folder: Path) -> tuple[int, int]:
    """Code and constants of a part as it is compiled, whether a program calls it or not."""
    objects = []
    for number, path in enumerate(files):
        objects.append(folder / f"{number}.o")
        include = f"-I{RUNTIME / 'drivers/vulkan'}"
        run(compiler, *FLAGS, include, "-DAOT_VULKAN=1", "-c", path, "-o", objects[-1])
    return sections(compiler, *objects)


def linked_sizes(compiler: str, flags: Sequence[str], folder: Path) -> tuple[int, int, int]:
    """Code, constants and the stripped file of the smallest application, the runtime linked in."""
    source, program = folder / "minimal.c", folder / "minimal"
    source.write_text(MINIMAL)
    files = files_of(("src/*.c", "drivers/cpu/*.c"))
    if "-DAOT_VULKAN=1" in flags:
        files += files_of(("drivers/vulkan/*.c",))
    include = f"-I{RUNTIME / 'drivers/vulkan'}"
    linking = ("-Wl,--gc-sections", "-Wl,-s", "-ldl", "-lm")
    run(compiler, *FLAGS, include, *flags, source, *files, "-o", program, *linking)
    return *sections(compiler, program), program.stat().st_size


def wasm_sizes() -> dict[str, int]:
    """The runtime of packages for WebAssembly, by whether it has text."""
    from aot.packaging.runtime_sources import runtime_sources
    from aot.packaging.toolchain import find_wasm_toolchain
    from aot.packaging.wasm import runtime_bytes

    toolchain = find_wasm_toolchain(None)
    return {
        name: len(runtime_bytes(runtime_sources(), toolchain, has_text=has_text))
        for name, has_text in (("any model", False), ("language models", True))
    }


def rows() -> Iterator[str]:
    """The page."""
    yield from (
        "# Sizes of the runtime",
        "",
        "What each part of the runtime takes, in bytes, compiled for size (`-Os`): code",
        "(`.text`), and constant data (`.rodata`, most of it messages). Written by",
        "`python docs/runtime_sizes.py`, with these compilers:",
        "",
    )
    for name, compiler in COMPILERS.items():
        yield f"- {name}: {run(compiler, '--version').splitlines()[0]}"
    heads = [f"{name} {what}" for name in COMPILERS for what in ("code", "data")]
    yield from ("", "## Parts", "", f"| part | {' | '.join(heads)} |")
    yield "|---" + "|--:" * len(heads) + "|"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, (patterns, without) in PARTS.items():
            files = files_of(patterns, without)
            sizes = [s for c in COMPILERS.values() for s in part_sizes(c, files, folder)]
            yield f"| {part} | {' | '.join(f'{size:,}' for size in sizes)} |"
        heads = [f"{n} {what}" for n in COMPILERS for what in ("code", "data", "file")]
        yield from (
            *("", "## Applications", ""),
            "The smallest one that opens a module, sets an input, runs and reads an output: with",
            "the runtime linked in, without what it does not call, and stripped. The C library is",
            "the system's.",
            "",
            f"| | {' | '.join(heads)} |",
        )
        yield "|---" + "|--:" * len(heads) + "|"
        for title, flags in LINKED.items():
            sizes = [s for c in COMPILERS.values() for s in linked_sizes(c, flags, folder)]
            yield f"| {title} | {' | '.join(f'{size:,}' for size in sizes)} |"
    yield from ("", "## WebAssembly", "", "`aot_runtime.wasm` of a package, all of it:", "")
    yield from ("| for | bytes |", "|---|--:|")
    for title, size in wasm_sizes().items():
        yield f"| {title} | {size:,} |"
    yield from (
        *("", "## The ceiling", ""),
        "`runtime/tools/text_size.sh` builds the loader with the CPU driver, threads included, as",
        "a shared library that exports the whole of `aot.h`, and fails above 34,304 bytes of code.",
        "It was 30,720 until the interface was made fit to be promised. What it has gained, in",
        "bytes: structures with sizes 430, threads of the host 430, cancelling and deadlines 270,",
        "a memory limit 230, NULL, busy programs and modules that are counted 1,100, features and",
        "metadata of the format 500, the copy of the structure and hooks for strides 320. What an",
        "application may do without is beside it: lists of a module's contents, strides, states,",
        "text, cores.",
    )


def main() -> int:
    """Writes the page; with --check says whether it tells of all parts (exit status 1)."""
    if "--check" in sys.argv[1:]:
        text = PAGE.read_text(encoding="utf-8")
        missing = [name for name in (*PARTS, *LINKED) if f"| {name} |" not in text]
        for name in missing:
            sys.stderr.write(f"{PAGE.relative_to(ROOT)} has no row for {name}\n")
        return 1 if missing else 0
    PAGE.write_text("\n".join(rows()) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
