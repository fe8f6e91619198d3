"""The way of the data: who may import whom inside `aot`, read from the source.

The stages stand in a row: frontends, passes, kernels, backends, link. None imports another, except
that backends read kernel IR; beside the row stands what several must agree on. The pipeline and
what is above it see the whole row.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT as CHECKOUT

ROOT = CHECKOUT / "aot"
GENERATED = "module_fbs.py"
ANY = {"*"}

# What each part of `aot` may import, beside itself and `errors`. A part is a folder or a file.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    # beside the row
    "ir": {"ops"},
    "ops": {"ir"},
    "options": set(),
    "sources": set(),
    "host_cpu": set(),
    "target": {"host_cpu", "ir"},
    "analysis": {"ir", "ops", "target"},
    "builder": {"ir"},
    # the row, in the data's order
    "frontends": {"ir", "ops", "analysis"},
    "passes": {"ir", "ops", "analysis", "target", "options"},
    "kernels": {"ir", "ops", "analysis", "target"},
    "backends": {"ir", "kernels", "target"},
    "link": {"ir", "analysis", "target"},
    # the device's side: knows the runtime and the file, and nothing of the compiler
    "loader": set(),
    "inputs": {"loader"},
    "inspection": {"ir", "link"},
    # above the row
    "object_cache": set(),
    "codegen": {"backends", "kernels", "object_cache", "options", "sources", "target"},
    "ledger": {"analysis", "ir", "link"},
    "ledger_text": set(),
    "near_misses": {"analysis", "ir", "passes", "target"},
    "hosting": {"analysis", "ir", "kernels", "link", "ops", "target"},
    "tuning_cache": {"analysis", "object_cache", "sources"},
    "tuning_runner": {"benchmark"},
    "tuning_module": {"analysis", "building", "ir", "ledger", "link", "ops", "options", "passes"}
    | {"target"},
    "tuning_session": {"analysis", "ir", "options", "target", "tuning_module", "tuning_runner"},
    "tuning": {"analysis", "ir", "options", "passes", "target", "tuning_cache", "tuning_module"}
    | {"tuning_runner", "tuning_session"},
    "building": ANY,
    "pipeline": ANY,
    "fusion_report": ANY,
    "details": {"analysis", "fusion_report", "ir", "kernels", "link", "passes"},
    "report": {"analysis", "details", "inspection", "ir", "ledger", "link"},
    "api": {
        *("details", "fusion_report", "link", "loader", "options", "pipeline", "report", "target"),
    },
    "merging": {"api", "link", "options"},
    "verification": {"api", "inputs", "ir", "loader", "options", "pipeline"},
    "devices": {"target"},
    "vulkan_facts": set(),
    "shader_benchmark": {"api", "inputs", "link", "loader", "vulkan_facts"},
    "benchmark": {"analysis", "inputs", "ir", "link", "loader", "target"},
    "bench_peers": {"benchmark"},
    "cli_bench": {
        *("bench_peers", "benchmark", "cli_compile", "cli_text", "report", "shader_benchmark"),
    },
    "__init__": {
        *("api", "builder", "inspection", "loader", "merging", "packaging", "verification"),
    },
    "cli_text": {"devices", "ir", "link", "matrix", "object_cache", "verification"},
    "cli_compile": {"__init__", "cli_text", "options"},
    "cli_inspect": {
        *("__init__", "cli_compile", "cli_text", "fusion_report", "inspection", "ledger"),
        "ledger_text",
    },
    "matrix_file": {"api"},
    "matrix": {"__init__", "api", "codegen", "link", "matrix_file", "options", "sources", "target"},
    "cli_build": {
        *("__init__", "cli_compile", "cli_text", "matrix", "object_cache", "options", "target")
    },
    "packaging": {"__init__", "analysis", "ir", "link"},
    "cli_devices": {"cli_text", "devices"},
    "cli_package": {"cli_compile", "cli_text", "packaging"},
    "cli": {
        *("__init__", "cli_bench", "cli_build", "cli_compile", "cli_inspect", "cli_text"),
        *("cli_devices", "cli_package", "inputs"),
    },
}
# Exceptions for single files: what they need and why.
ALSO_ALLOWED: dict[str, set[str]] = {
    "pipeline.py": {"__init__"},  # the version, which is part of the file
}
# Neighbours in one folder that do not know each other.
STRANGERS = [("backends/cpu", "backends/vulkan"), ("ops", "ir/interpreter")]


def _files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.name != GENERATED)


def _part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(source: str) -> set[str]:
    """The `aot` modules that a source imports, anywhere in it, for type checking included.

    `from aot import x` counts as `aot.x` if that is a part, else as the package itself.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    names = [name.split(".") for name in found]
    return {
        ".".join(name) if len(name) > 1 and name[1] in ALLOWED else "aot.__init__"
        for name in names
        if name[0] == "aot"
    }


def _violations(part: str, file: str, source: str) -> list[str]:
    allowed = ALLOWED[part] | {part, "errors"} | ALSO_ALLOWED.get(file, set())
    if "*" in allowed:
        return []
    return sorted(name for name in _imports(source) if name.split(".")[1] not in allowed)


def test_every_part_is_listed() -> None:
    assert {_part(path) for path in _files()} <= set(ALLOWED)


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_way_of_the_data(path: Path) -> None:
    file = str(path.relative_to(ROOT))
    assert _violations(_part(path), file, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("one", "other"), [*STRANGERS, *((b, a) for a, b in STRANGERS[:1])])
def test_strangers_stay_strangers(one: str, other: str) -> None:
    name = "aot." + other.replace("/", ".")
    for path in _files():
        if path.relative_to(ROOT).as_posix().startswith(one):
            found = _imports(path.read_text(encoding="utf-8"))
            assert [i for i in found if i == name or i.startswith(f"{name}.")] == [], path


@pytest.mark.parametrize(
    ("part", "source", "violations"),
    [
        ("analysis", "from aot.passes.simplify.cse import CSE", ["aot.passes.simplify.cse.CSE"]),
        ("analysis", "def f():\n    import aot.kernels.ir.nodes", ["aot.kernels.ir.nodes"]),
        ("passes", "from aot import pipeline", ["aot.driver.pipeline"]),
        ("link", "from aot import __version__", ["aot.__init__"]),
        ("loader", "from aot.ir.types import DType", ["aot.ir.types.DType"]),
        ("backends", "import numpy\nfrom aot.kernels.ir.nodes import For", []),
        ("errors", "import aotearoa", []),
    ],
)
def test_the_check_itself(part: str, source: str, violations: list[str]) -> None:
    assert _violations(part, "x.py", source) == violations


def test_only_the_command_prints() -> None:
    for path in _files():
        if _part(path).startswith("cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            assert not is_print, f"{path}: print"


def test_importing_aot_is_cheap() -> None:
    script = "import sys, aot, aot.cli.main; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    heavy = {"numpy", "onnx", "llvmlite", "flatbuffers", "rich", "google", "jinja2"}
    assert heavy & set(result.stdout.split()) == set()


def test_files_stay_readable() -> None:
    """600 lines ask to be two; what is above 700 has not listened."""
    long = {p.name: n for p in _files() if (n := p.read_text(encoding="utf-8").count("\n")) > 700}
    assert long == {}
