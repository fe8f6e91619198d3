"""The way of the data: who may import whom inside `aot`, read from the source.

A part is a folder of `aot`, or one of the files beside them. `RANKS` lists the parts from the
bottom up: a part imports itself and what stands on lower lines. What stands on one line is
strangers to each other. Imports for type checking alone count like any other; so do those inside
functions.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import aot
from tests.support.paths import ROOT as CHECKOUT

ROOT = CHECKOUT / "aot"
GENERATED = "module_fbs.py"

RANKS: tuple[tuple[str, ...], ...] = (
    ("base", "errors", "version"),
    ("switches", "runtime"),  # for debugging; the device's side, which knows no compiler
    ("options", "text"),
    ("ir",),
    ("ops", "target"),
    ("analysis",),
    ("kernels",),  # their rules, which passes ask what an executable would become
    # the row, in the data's order
    ("frontends", "passes"),
    ("link",),
    ("backends",),  # code of kernels, linked
    # what drives the row, and what is told of it
    ("tuning",),
    ("driver",),
    ("report",),
    ("api", "builder"),
    ("tools", "packaging"),
    ("__init__",),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}
# What a part on a lower line may still not see, and what may cross a line: each with its reason.
FORBIDDEN = {
    "link": {"ops", "passes", "kernels", "backends", "frontends"},  # bytes, lifetimes, instructions
    "backends": {"analysis", "passes", "frontends"},  # kernels say all that a backend may know
    "kernels": {"passes", "frontends"},
    "passes": {"frontends"},
}
# Neighbours in one folder that do not know each other.
STRANGERS = [
    ("backends/cpu", "backends/vulkan"),
    ("kernels/ir", "kernels/rules"),
    # facts, then the pieces that rules share, then rules
    ("kernels/match", "kernels/stage"),
    ("kernels/match", "kernels/rules"),
    ("kernels/nest", "kernels/stage"),
    ("kernels/nest", "kernels/rules"),
    ("kernels/stage", "kernels/rules"),
]


def _files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.name != GENERATED)


def _part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def _names(source: str) -> tuple[str, ...]:
    """What a source imports, anywhere in it: `aot.a.b` or `aot.a.b.name`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def _imported(source: str) -> set[str]:
    """The parts of `aot` that a source imports; the package itself is `__init__`."""
    found = set()
    for name in _names(source):
        first, _, rest = name.partition(".")
        if first == "aot":
            part = rest.split(".")[0]
            found.add(part if part in RANK else "__init__")
    return found


def _violations(part: str, source: str) -> list[str]:
    forbidden = FORBIDDEN.get(part, set())
    return sorted(
        other
        for other in _imported(source) - {part}
        if RANK[other] >= RANK[part] or other in forbidden
    )


def test_every_part_has_a_rank() -> None:
    assert {_part(path) for path in _files()} == set(RANK)


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_way_of_the_data(path: Path) -> None:
    assert _violations(_part(path), path.read_text(encoding="utf-8")) == []


IMPORT_IN_TEXT = re.compile(r"^\s*(?:from|import)\s+(tests\.[\w.]+)", re.M)


def _tests_imported(source: str) -> list[str]:
    """What a source imports of `tests` that is not support; in scripts for other processes too."""
    texts = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    scripts = [text for text in texts if isinstance(text, str)]
    names = [*_names(source), *(name for text in scripts for name in IMPORT_IN_TEXT.findall(text))]
    return [n for n in names if n.startswith("tests.") and not n.startswith("tests.support")]


def test_no_test_imports_another() -> None:
    """What tests share is in tests/support, so that a file of tests can be moved or removed."""
    sources = sorted((CHECKOUT / "tests").rglob("*.py"))
    assert len(sources) > 200
    found = {
        str(path.relative_to(CHECKOUT)): names
        for path in sources
        if (names := _tests_imported(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from {}.ir.test_dims import N", ["tests.unit.ir.test_dims.N"]),
        ("def f():\n    from {} import test_layering", ["tests.unit.test_layering"]),
        ("SCRIPT = 'import sys\\nfrom {}.test_layering import N'", ["tests.unit.test_layering"]),
        ("from tests.support.paths import ROOT\nfrom tests.support import models", []),
    ],
)
def test_the_check_of_tests(source: str, names: list[str]) -> None:
    assert _tests_imported(source.format("tests.unit")) == names


def test_no_more_than_seven_files_are_loose() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 7


def test_the_top_level_is_fixed() -> None:
    """Nothing else is committed beside the project's folders, such as what a command left there."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("which files are the project's is known in a git checkout")
    git = ["git", "-C", str(CHECKOUT), "ls-tree", "-z", "--name-only", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    folders = {"aot", "runtime", "targets", "tests", "samples", "docs", "benchmarks", ".ci"}
    pages = {"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    settings = {"pyproject.toml", ".clang-format", ".gitignore"}
    assert set(found.split("\0")) - {""} == folders | pages | settings | {"LICENSE"}


def test_the_build_has_the_version_of_the_package() -> None:
    """That of the wheel is read from the source; that of a runtime built alone agrees."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["dynamic"] == ["version"]
    source = settings["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert source == "aot/version.py"
    found = re.findall(r'^__version__ = "(.+)"$', (CHECKOUT / source).read_text(), re.M)
    assert found == [aot.__version__]
    cmake = (CHECKOUT / "runtime" / "CMakeLists.txt").read_text()
    assert re.findall(r'set\(AOT_VERSION "(.+?)" CACHE', cmake) == found


def test_classes_compile_no_methods_as_they_are_imported() -> None:
    """They are `aot.base.records`'; the runtime's binding has nothing of the compiler's."""
    for path in _files():
        if _part(path) not in ("base", "runtime"):
            names = _names(path.read_text(encoding="utf-8"))
            assert "dataclasses.dataclass" not in names, path


def test_packages_say_what_they_own() -> None:
    for folder in {path.parent for path in _files()} - {ROOT}:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert text, f"{folder} has no docstring"


def _listed(docstring: str) -> set[str]:
    """The modules that a docstring lists under `Files:`: a line of names, then what they do."""
    _, _, table = docstring.partition("\nFiles:\n")
    rows = re.findall(r"^    (\w[\w, ]*): ", table, re.M)
    return {name for row in rows for name in row.split(", ")}


def test_packages_list_their_files() -> None:
    listed = 0
    for folder in {path.parent for path in _files()} - {ROOT}:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        names = _listed(str(text))
        listed += bool(names)
        found = {p.stem for p in folder.glob("*.py")} - {"__init__"}
        found |= {p.parent.name for p in folder.glob("*/__init__.py")}
        assert names in (set(), found), folder
    assert listed > 12


def test_a_list_of_files_is_read() -> None:
    text = "A package.\n\nFiles:\n    a, b: two\n        lines: of text.\n    c_d: one"
    assert _listed(text) == {"a", "b", "c_d"}


@pytest.mark.parametrize(("one", "other"), [*STRANGERS, *((b, a) for a, b in STRANGERS[:1])])
def test_strangers_stay_strangers(one: str, other: str) -> None:
    name = "aot." + other.replace("/", ".")
    for path in (ROOT / one).rglob("*.py"):
        found = _names(path.read_text(encoding="utf-8"))
        assert [i for i in found if i == name or i.startswith(f"{name}.")] == [], path


@pytest.mark.parametrize(
    ("part", "source", "violations"),
    [
        ("analysis", "from aot.passes.simplify.cse import CSE", ["passes"]),
        ("analysis", "def f():\n    import aot.kernels.ir.nodes", ["kernels"]),
        ("passes", "from aot.driver import pipeline", ["driver"]),
        ("link", "import aot", ["__init__"]),
        ("link", "from aot import __version__", ["__init__"]),
        ("link", "from aot.version import __version__", []),
        ("link", "from aot.ops import movement", ["ops"]),
        ("runtime", "from aot.ir.types import DType", ["ir"]),
        ("ir", "from aot.ops import lookup", ["ops"]),
        ("ops", "if TYPE_CHECKING:\n    from aot.target.model import Target", ["target"]),
        ("backends", "import numpy\nfrom aot.kernels.ir.nodes import For", []),
        ("errors", "import aotearoa", []),
    ],
)
def test_the_check_itself(part: str, source: str, violations: list[str]) -> None:
    assert _violations(part, source) == violations


def _without_types(source: str) -> str:
    """A source without its imports for type checking alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def _cycles() -> list[list[str]]:
    """Rings of modules that import each other, at their top level or inside functions."""
    names = {
        ".".join(p.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__"): p
        for p in _files()
    }
    arrows: dict[str, list[str]] = {}
    for name, path in names.items():
        found = _names(_without_types(path.read_text(encoding="utf-8")))
        arrows[name] = sorted(
            {t if t in names else t.rpartition(".")[0] for t in found} & set(names)
        )
    rings: list[list[str]] = []
    state: dict[str, int] = {}

    def walk(name: str, path: list[str]) -> None:
        state[name] = 1
        for other in arrows[name]:
            if state.get(other) == 1:
                rings.append([*path[path.index(other) :], other])
            elif other not in state:
                walk(other, [*path, other])
        state[name] = 2

    for name in sorted(names):
        if name not in state:
            walk(name, [name])
    return rings


def test_no_ring_of_imports() -> None:
    assert _cycles() == []


def test_only_the_command_prints() -> None:
    for path in _files():
        source = path.read_text(encoding="utf-8")
        if _part(path) == "cli" or "print(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            assert not is_print, f"{path}: print"


def _asks_for_a_cpu(source: str) -> bool:
    return "is_cpu" in source and any(
        isinstance(n, ast.Attribute) and n.attr == "is_cpu" for n in ast.walk(ast.parse(source))
    )


def test_few_ask_whether_a_target_is_a_cpu() -> None:
    """Others ask for the fact that they mean: of the target's, or of the backend's."""
    found = {
        str(path.relative_to(ROOT))
        for path in _files()
        if _part(path) != "target" and _asks_for_a_cpu(path.read_text(encoding="utf-8"))
    }
    assert found <= {"backends/cpu/traits.py", "driver/cpu_fallback.py"}


def _reads_of_vulkan(source: str) -> list[int]:
    """Lines that read a target's Vulkan limits; the runtime's list of files is another matter."""
    if "vulkan" not in source:
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr == "vulkan"
        and ast.unparse(node.value) != "sources"
    ]


def test_only_its_backend_reads_the_limits_of_vulkan() -> None:
    """Plans, passes and schedules read a target's `gpu`, which another API has as well."""
    for path in _files():
        if path.is_relative_to(ROOT / "backends" / "vulkan") or _part(path) == "target":
            continue
        assert _reads_of_vulkan(path.read_text(encoding="utf-8")) == [], path
    assert _reads_of_vulkan("import aot.backends.vulkan\nif target.vulkan is None:\n    pass") == [
        2
    ]


def test_importing_aot_is_cheap() -> None:
    script = "import sys, aot, aot.cli.main; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    heavy = {"numpy", "onnx", "llvmlite", "flatbuffers", "rich", "google", "jinja2"}
    assert heavy & set(result.stdout.split()) == set()


def test_files_stay_readable() -> None:
    """600 lines ask to be two; what is above 700 has not listened. What a script writes is not
    read."""
    folders = ("aot", "tests", "benchmarks", "runtime", "samples", "docs")
    sources = {".py", ".c", ".h", ".mjs", ".kt", ".java"}
    paths = [p for f in folders for p in (CHECKOUT / f).rglob("*") if p.suffix in sources]
    assert len(paths) > 900
    long = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 700 and "Generated by " not in text[:1000]:
            long.append(str(path.relative_to(CHECKOUT)))
    assert long == []
