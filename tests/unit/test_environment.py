"""The page of environment variables has each one that the sources read, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.paths import ROOT

NAME = re.compile(r"AOT_[A-Z0-9_]+")
# How C reads the environment; the second is the Vulkan driver's name for the first.
C_READ = re.compile(r"\b(?:getenv|aot_vk_environment)\(([^()]*)\)")


def _files(folder: str, *endings: str) -> list[Path]:
    found = (path for path in (ROOT / folder).rglob("*") if path.suffix in endings)
    return sorted(path for path in found if "node_modules" not in path.parts)


def _constants(sources: Iterable[str]) -> dict[str, str]:
    """Variables' names by the names that sources give them, as in `RUNNER = "AOT_RUN"`."""
    found = {}
    for source in sources:
        pairs = re.findall(r'^(\w+) = "(AOT_[A-Z0-9_]+)"$', source, re.MULTILINE)
        found.update(pairs)
    return found


def _read(source: str, constants: dict[str, str]) -> Iterator[str]:
    """The variables that a source of Python reads: what it passes to `get` of a mapping or to
    `getenv`, and what it subscripts an environment with."""
    for node in ast.walk(ast.parse(source)):
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            key = node.args[0] if called in ("get", "getenv") else None
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice if ast.unparse(node.value).endswith("environ") else None
        name = key.value if isinstance(key, ast.Constant) else None
        if isinstance(key, (ast.Name, ast.Attribute)):
            name = constants.get(key.id if isinstance(key, ast.Name) else key.attr)
        if isinstance(name, str) and NAME.fullmatch(name):
            yield name


def _read_in_c(source: str) -> Iterator[str]:
    for argument in C_READ.findall(source):
        name = argument.strip('"')
        is_a_parameter = argument in ("name", "const char *name")
        assert is_a_parameter or name != argument, f"the environment is read by {argument!r}"
        if NAME.fullmatch(name):
            yield name


def _variables(python: Iterable[Path], c: Iterable[Path]) -> set[str]:
    sources = [path.read_text(encoding="utf-8") for path in python]
    others = [path.read_text(encoding="utf-8") for path in c]
    everywhere = [p.read_text(encoding="utf-8") for f in ("aot", "tests") for p in _files(f, ".py")]
    constants = _constants(everywhere)
    found = {name for source in sources for name in _read(source, constants)}
    return found | {name for source in others for name in _read_in_c(source)}


def _tables() -> dict[str, set[str]]:
    """The variables of the page's tables, by their headings."""
    page = (ROOT / "docs" / "use" / "environment.md").read_text(encoding="utf-8")
    parts = page.split("\n## ")[1:]
    return {
        part.partition("\n")[0]: set(re.findall(r"^\| `(AOT_\w+)` \|", part, re.MULTILINE))
        for part in parts
    }


def _is_test(path: Path) -> bool:
    return path.is_relative_to(ROOT / "runtime" / "tests")


def test_the_page_has_the_compilers_variables() -> None:
    found = _variables([*_files("aot", ".py"), *_files("samples", ".py")], [])
    assert _tables()["Of the compiler and the command"] == found


def test_the_page_has_the_runtimes_variables() -> None:
    sources = [*_files("runtime", ".c", ".h"), *_files("samples", ".c", ".h")]
    found = _variables([], [path for path in sources if not _is_test(path)])
    assert _tables()["Of the runtime"] == found


def test_the_page_has_the_tests_variables() -> None:
    c = [*filter(_is_test, _files("runtime", ".c", ".h")), *_files("tests", ".c", ".h")]
    python = [p for f in ("tests", "benchmarks") for p in _files(f, ".py")]
    tables = _tables()
    known = tables["Of the compiler and the command"] | tables["Of the runtime"]
    assert tables["Of the tests"] == _variables(python, c) - known


def test_reads_are_found() -> None:
    source = (
        'import os\nOWN = "AOT_OWN"\n'
        'a = os.environ["AOT_A"]\nos.environ["AOT_SET"] = "1"\nb = os.getenv("AOT_B")\n'
        'c = given.get("AOT_C", "")\nd = environ.get(other.OWN)\ne = os.environ[OWN]\n'
        'f = table["AOT_TABLE"]\n'
    )
    found = list(_read(source, _constants([source])))
    assert sorted(found) == ["AOT_A", "AOT_B", "AOT_C", "AOT_OWN", "AOT_OWN"]
    assert list(_read_in_c('x = getenv("AOT_X"); y = getenv("HOME");')) == ["AOT_X"]
