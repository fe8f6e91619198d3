"""What holds for the runtime's sources: generated files, format, warnings, size, exports, state."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runtime_build import RUNTIME, WARNINGS, build, library_sources, tool_sources

ROOT = RUNTIME.parent
C_FILES = sorted([*RUNTIME.glob("**/*.c"), *RUNTIME.glob("**/*.h")])


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command, its output as text."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def find(program: str) -> str:
    """A program beside this Python or on the path; skips the test where it is missing."""
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.exists() else shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def test_generated_files_are_up_to_date() -> None:
    find("flatc")
    result = run(sys.executable, RUNTIME / "generate_schema.py", "--check")
    assert result.returncode == 0, result.stderr


HEADERS = (
    "aot.h",
    "async.h",
    "chat.h",
    "contents.h",
    "cores.h",
    "state.h",
    "strides.h",
    "text.h",
)  # of what every build for POSIX exports
GENERATED = (
    *("aot/link/module_fbs.pyi", "aot/link/module_schema.py", "docs/internals/file-format.md"),
    *(f"runtime/src/{name}.h" for name in ("module_fbs", "module_rules", "program_rules")),
)


def test_the_check_of_generated_files_can_fail(tmp_path: Path) -> None:
    """A copy of the checkout's part with a changed schema is found out of date, then made right."""
    for name in GENERATED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    script = tmp_path / "runtime" / "generate_schema.py"
    for path in (
        script,
        *map(script.with_name, ("generate_rules.py", "generate_program_rules.py")),
    ):
        shutil.copy(RUNTIME / path.name, path)
    rules = (RUNTIME / "module_rules.toml").read_text().replace("least -1", "least -2")
    rules = rules.replace("no such axis", "no such dim")
    (tmp_path / "runtime" / "module_rules.toml").write_text(rules)
    schema = (RUNTIME / "module.fbs").read_text().replace("VULKAN = 1 }", "VULKAN = 1, NPU = 2 }")
    (tmp_path / "runtime" / "module.fbs").write_text(schema)
    check = (sys.executable, script, "--without-flatc", "--check")
    result = run(*check)
    assert result.returncode == 1
    for name in GENERATED:
        assert f"{name} is out of date with module.fbs" in result.stderr
    assert run(sys.executable, script, "--without-flatc").returncode == 0
    assert run(*check).returncode == 0
    assert "must be at least -2" in (tmp_path / "runtime/src/module_rules.h").read_text()
    assert "no such dim" in (tmp_path / "runtime/src/program_rules.h").read_text()
    assert "AOT_FBS_DEVICE_NPU = 2" in (tmp_path / "runtime/src/module_fbs.h").read_text()


def test_the_documents_header_is_abi_hs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "internals" / "file-format.md").read_text()
    rows = re.findall(r"^\| (\d+)-(\d+) \| `(\w+)` \|", text, re.MULTILINE)
    assert len(rows) == 8
    lines = ['#include "aot/abi.h"', "#include <stddef.h>"]
    for first, last, field in rows:
        member = f"((aot_file_header_t *)0)->{field}"
        lines.append(f'_Static_assert(offsetof(aot_file_header_t, {field}) == {first}, "");')
        lines.append(f'_Static_assert(sizeof({member}) == {int(last) - int(first) + 1}, "");')
    (tmp_path / "header.c").write_text("\n".join(lines) + "\n")
    result = run(find("gcc"), "-fsyntax-only", f"-I{RUNTIME / 'include'}", tmp_path / "header.c")
    assert result.returncode == 0, result.stderr


def test_every_instruction_has_a_meaning_in_the_document() -> None:
    text = (ROOT / "docs" / "internals" / "file-format.md").read_text()
    section = text.split("<!-- generated: instructions -->")[1].split("<!-- end")[0]
    rows = [line.split(" | ") for line in section.splitlines() if "`" in line]
    assert len(rows) == 34
    assert all(row[-1].removesuffix("|").strip() for row in rows)


def test_statuses_and_dtypes_have_their_own_names() -> None:
    """The tables in status.c are in the order of aot.h's enums."""
    header = (RUNTIME / "include" / "aot" / "aot.h").read_text()
    source = (RUNTIME / "src" / "status.c").read_text()
    statuses = re.findall(r"AOT_ERROR_(\w+) = (\d+)", header)
    names = re.search(r"names\[AOT_ERROR_COUNT\] = \{(.*?)\};", source, re.DOTALL)
    assert names is not None
    found = re.findall(r'"(\w+)"', names[1])
    assert found == ["ok", *(name.lower() for name, _ in statuses)]
    assert [int(value) for _, value in statuses] == list(range(1, len(found)))
    dtypes = re.findall(r"AOT_DTYPE_(\w+) = \d+", header)
    schema = re.findall(r"(\w+) = \d+", (RUNTIME / "module.fbs").read_text().split("}")[0])
    assert dtypes == schema


def test_format() -> None:
    result = run(find("clang-format"), "--dry-run", "--Werror", *C_FILES)
    assert result.returncode == 0, result.stderr


COMPILERS = {
    "gcc": [],
    "clang": [],
    "aarch64-linux-gnu-gcc": [],
    "arm-linux-gnueabihf-gcc": ["-mthumb"],
    "riscv64-linux-gnu-gcc": [],
}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_warnings(compiler: str) -> None:
    includes = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}"]
    sources = [*tool_sources(), *sorted(RUNTIME.glob("tests/*.c"))]
    flags = [*WARNINGS, *COMPILERS[compiler], *includes, "-Wvla", "-fsyntax-only"]
    result = run(find(compiler), *flags, *sources)
    assert result.returncode == 0, result.stderr


def test_headers_stand_alone_in_c_and_cpp(tmp_path: Path) -> None:
    for header in (f"aot/{name}" for name in (*HEADERS, "abi.h")):
        for compiler, name, standard in (
            ("gcc", "x.c", "-std=c11"),
            ("g++", "x.cpp", "-std=c++11"),
        ):
            path = tmp_path / name
            path.write_text(f'#include "{header}"\n#include "{header}"\n')
            flags = [standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
            result = run(find(compiler), *flags, f"-I{RUNTIME / 'include'}", path)
            assert result.returncode == 0, result.stderr


def test_exports_are_what_the_header_declares() -> None:
    flags = ["-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    library = build("libaot_runtime_exports.so", library_sources(), flags)
    if library is None:
        pytest.skip("gcc is not installed")
    symbols = run(find("nm"), "-D", "--defined-only", library).stdout.split("\n")
    found = {line.split()[-1] for line in symbols if line}
    headers = [RUNTIME / "include" / "aot" / name for name in HEADERS]
    header = "\n".join(path.read_text() for path in headers)
    declared = set(re.findall(r"^AOT_API [^;(]*?(aot_\w+)\(", header, re.MULTILINE))
    assert len(declared) > 20
    assert found == declared


def test_there_is_no_mutable_state() -> None:
    # Without position independence constant tables of pointers need no relocation at load: what
    # is left in writable sections would be state.
    flags = ["-O1", "-fno-pic", "-no-pie", "-r", "-nostdlib"]
    merged = build("aot_runtime_merged.o", library_sources(), flags)
    if merged is None:
        pytest.skip("gcc is not installed")
    lines = [line.split() for line in run(find("nm"), merged).stdout.splitlines()]
    assert ["aot_cpu_driver", "R"] in [line[:0:-1] for line in lines]
    assert [line[-1] for line in lines if line[-2] in set("dDbBC")] == []


def test_text_size() -> None:
    find("gcc")
    result = run("sh", RUNTIME / "tools" / "text_size.sh")
    assert result.returncode == 0, result.stdout + result.stderr
    match = re.match(r"loader \.text: (\d+) of 34304 bytes", result.stdout)
    assert match is not None
    assert 10_000 < int(match[1]) < 34_304
    # It says so when the limit is passed.
    result = run("env", "LIMIT=10000", "sh", RUNTIME / "tools" / "text_size.sh")
    assert result.returncode == 1


def test_cmake_lists_every_source() -> None:
    text = (RUNTIME / "CMakeLists.txt").read_text()
    listed = set(
        re.findall(r"^\s+((?:src|drivers/cpu|cores|extras|state|text)/\w+\.c)", text, re.MULTILINE)
    )
    assert listed == {str(path.relative_to(RUNTIME)) for path in library_sources()}


@pytest.mark.slow
def test_cmake_builds_and_installs(tmp_path: Path) -> None:
    cmake = find("cmake")
    build_dir, prefix = tmp_path / "build", tmp_path / "prefix"
    configure = run(cmake, "-S", RUNTIME, "-B", build_dir, f"-DCMAKE_INSTALL_PREFIX={prefix}")
    assert configure.returncode == 0, configure.stderr
    made = run(cmake, "--build", build_dir, "--parallel", "2")
    assert made.returncode == 0, made.stdout
    assert run(find("ctest"), "--test-dir", build_dir).returncode == 0
    size = run(cmake, "--build", build_dir, "--target", "size")
    assert "loader .text: " in size.stdout
    assert run(cmake, "--install", build_dir).returncode == 0
    installed = {str(p.relative_to(prefix)) for p in prefix.rglob("*") if p.is_file()}
    names = {Path(name).name for name in installed}
    assert {"libaot_runtime.so", "libaot_runtime.a", "aot.h", "abi.h", "aot-run"} <= names
    # What an application asks for by its interface, and the version of each symbol.
    header = (RUNTIME / "include" / "aot" / "aot.h").read_text()
    interface = re.search(r"#define AOT_INTERFACE (\d+)u", header)
    assert interface is not None
    shared = next(prefix.rglob(f"libaot_runtime.so.{interface[1]}"))
    symbols = run(find("nm"), "-D", "--defined-only", shared).stdout.split("\n")
    exported = {line.split()[-1] for line in symbols if " T " in line}
    assert "aot_program_run" in {name.partition("@")[0] for name in exported}
    assert {name.partition("@")[2] for name in exported} == {f"@AOT_{interface[1]}"}
    assert f"[{shared.name}]" in run(find("readelf"), "-d", shared).stdout
