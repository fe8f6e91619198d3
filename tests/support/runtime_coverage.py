"""The lines of the runtime that its fuzzers and tests run, of each file.

    python tests/support/runtime_coverage.py FOLDER [TEST ...]    # runs them, then prints the table
    python tests/support/runtime_coverage.py FOLDER --report      # the table of what has run so far
    python tests/support/runtime_coverage.py FOLDER --missing src/alloc.c

Everything that tests build of the runtime, libraries, programs and fuzzers, is built by clang so
that it counts (runtime_build.py), and writes to FOLDER whatever becomes of its process. A line is
counted that this machine's compiler makes code of: what stands under `#if` for other systems is
not, nor what a macro is defined as. It has run if it has in any of the builds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.paths import ROOT, RUNTIME

COUNTED = ("src", "drivers", "state", "text")
LEAST_OF_ALL, LEAST_OF_A_FILE = 0.95, 0.90
TESTS = (
    *("tests/fuzz/test_fuzzers.py", "tests/fuzz/test_runtime_fuzz.py", "tests/runtime"),
    *("tests/unit/runtime/test_loader.py", "tests/unit/text/test_generation.py"),
    "tests/unit/frontends/gguf/test_decoder.py::test_what_windows_have_is_saved_and_taken_back",
)
UNMARKED = "not sweep and not gate and not qemu and not models"
Lines = dict[str, dict[int, int]]  # of a file, how often each line has run


def variables(folder: Path) -> dict[str, str]:
    """What makes builds count, and where to."""
    (folder / "counts").mkdir(parents=True, exist_ok=True)
    return {
        "AOT_TEST_COVERAGE": "1",
        "AOT_TEST_BUILD_DIR": str(folder / "builds"),
        "LLVM_PROFILE_FILE": str(folder / "counts" / "%c%m.profraw"),
    }


def run_tests(folder: Path, tests: Iterable[str]) -> int:
    """Runs tests with counting builds; their exit status."""
    environment = os.environ | variables(folder)
    # That of programs that no test gives another one.
    script = "from tests.support import vulkan_runtime; print(vulkan_runtime.library_path())"
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    environment["AOT_RUNTIME_LIBRARY"] = found.stdout.strip()
    command = [sys.executable, "-m", "pytest", "-q", "-m", UNMARKED, *tests]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    # Of programs that a test gives no variables.
    left = ROOT / "default.profraw"
    if left.exists():
        shutil.move(left, folder / "counts" / left.name)
    return status


def _is_counting(path: Path) -> bool:
    return path.is_file() and b"__llvm_covmap" in path.read_bytes() and path.suffix != ".o"


def _counts_of(binary: Path, profile: Path) -> Iterator[tuple[str, int, int]]:
    """File, line and count of each line that a binary has."""
    command = ["llvm-cov", "export", "-format=lcov", f"-instr-profile={profile}", str(binary)]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    name = ""
    for line in text.splitlines():
        kind, _, rest = line.partition(":")
        if kind == "SF":
            name = rest
        elif kind == "DA":
            number, count = rest.split(",")[:2]
            yield name, int(number), int(count)


def lines_of(folder: Path) -> Lines:
    """The lines of the counted folders, by their files' paths in the runtime."""
    profile = folder / "all.profdata"
    raw = sorted(map(str, (folder / "counts").glob("*.profraw")))
    subprocess.run(
        ["llvm-profdata", "merge", "-sparse", "--failure-mode=all", *raw, "-o", str(profile)],
        check=True,
    )
    found: Lines = defaultdict(dict)
    for binary in sorted(filter(_is_counting, (folder / "builds").rglob("*"))):
        for name, number, count in _counts_of(binary, profile):
            path = Path(name)
            if path.suffix != ".c" or not path.is_relative_to(RUNTIME):
                continue
            own = path.relative_to(RUNTIME).as_posix()
            if own.split("/")[0] in COUNTED:
                found[own][number] = max(count, found[own].get(number, 0))
    for name, lines in found.items():
        text = (RUNTIME / name).read_text().splitlines()
        for number in [n for n in lines if text[n - 1].startswith("#")]:
            del lines[number]
    return found


def table(found: Lines) -> str:
    """Markdown: a row for each file, and of all."""
    rows = ["| file | lines | run | of them |", "|---|---|---|---|"]
    everything = run_of_all = 0
    for name, lines in sorted(found.items()):
        run = sum(count > 0 for count in lines.values())
        everything += len(lines)
        run_of_all += run
        rows.append(f"| `{name}` | {len(lines)} | {run} | {run / len(lines):.1%} |")
    share = f"{run_of_all / max(everything, 1):.1%}"
    return "\n".join([*rows, f"| all | {everything:,} | {run_of_all:,} | {share} |"])


def low(found: Lines) -> list[str]:
    """What is below the goal."""
    shares = {n: sum(c > 0 for c in lines.values()) / len(lines) for n, lines in found.items()}
    failed = [f"{n}: {share:.1%}" for n, share in shares.items() if share < LEAST_OF_A_FILE]
    counts = [count > 0 for lines in found.values() for count in lines.values()]
    share = sum(counts) / max(len(counts), 1)
    return [*failed, *([f"all: {share:.1%}"] if share < LEAST_OF_ALL else [])]


def missing(found: Lines, name: str) -> str:
    """The lines of a file that have not run."""
    text = (RUNTIME / name).read_text().splitlines()
    numbers = sorted(number for number, count in found[name].items() if count == 0)
    return "\n".join(f"{number:5} {text[number - 1]}" for number in numbers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tests", nargs="*", default=list(TESTS))
    parser.add_argument("--report", action="store_true", help="without running anything")
    parser.add_argument("--missing", metavar="FILE", action="append", default=[])
    words = parser.parse_args()
    folder = words.folder.resolve()
    status = 0
    if not words.report and not words.missing:
        status = run_tests(folder, words.tests)
    found = lines_of(folder)
    for name in words.missing:
        print(f"{name}\n{missing(found, name)}")
    if not words.missing:
        print(table(found))
        print("\n".join(f"too low: {line}" for line in low(found)))
        status = status or bool(low(found))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
