"""Arguments as docs, help texts and messages have them: what a shell would read itself is quoted.

In zsh an unquoted `*` or `?` that matches no file is an error, and in all shells `<` and `>` name
files: `--input-shape x=Sx3 S>=2` writes one that is called `=2`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aot.cli import main as cli
from tests.support.paths import ROOT

PAGES = sorted(
    path
    for folder, pattern in (
        (ROOT, "*.md"),
        (ROOT / "docs", "**/*.md"),
        (ROOT / "samples", "**/*.md"),
    )
    for path in folder.glob(pattern)
)
TABLES = ROOT / "aot" / "frontends" / "gguf" / "grids.py"  # bytes as text, no words
SOURCES = sorted({*(ROOT / "aot").rglob("*.py"), *(ROOT / "samples").rglob("*.py")} - {TABLES})
# an option with its value, but no redirection or comment behind it, or NAME=SHAPE anywhere
ARGUMENT = re.compile(
    r"(?<![\w'\"])--[a-z][a-z-]*[ =](?P<value>(?![>#] )[^\s`]+)"
    r"|(?<![\w'\".])(?P<pair>[\w.]+=[0-9?][^\s`]*[x,][^\s`]+)"
)
# brackets of a value; elsewhere they and bars are a synopsis
SPECIAL = re.compile(r"[*?<>(){}$&;!#~\\]|=\[")


def unquoted(text: str) -> list[str]:
    """Arguments in `text` that a shell would change, less the prose's own punctuation."""
    found: list[str] = []
    for match in ARGUMENT.finditer(text):
        word = match["value"] or match["pair"]
        word = re.sub(r"'[^']*'|\"[^\"]*\"", "", word).rstrip(".,:;)]|\\'\"")
        if SPECIAL.search(word):
            found.append(match[0])
    return found


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield name, command.get_help(inner)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\|", "|")  # a bar in a cell of a table
    assert unquoted(text) == []


def test_help_texts() -> None:
    context = click.Context(cli.cli, info_name="aotc")
    texts = dict(_commands(cli.cli, context))
    assert {"compile", "run", "bench", "package", "build"} <= set(texts)
    found = {name: words for name, text in texts.items() if (words := unquoted(text))}
    assert found == {}


def test_strings_of_the_sources() -> None:
    """Docstrings and messages."""
    found = {
        str(path.relative_to(ROOT)): words
        for path in SOURCES
        if (words := [word for text in _strings(path) for word in unquoted(text)])
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aotc compile a --input-shape x=1,3,32*h,32*w", ["--input-shape x=1,3,32*h,32*w"]),
        ("(`--input-shape x=1x3xH<=640xW`)", ["--input-shape x=1x3xH<=640xW"]),
        ("as in x=1x3xH<=640xW<=640, to see", ["x=1x3xH<=640xW<=640,"]),
        ("--shape=x=1xS>=2", ["--shape=x=1xS>=2"]),
        ("--input-shape past=1x8x?x64 --state a=b", ["--input-shape past=1x8x?x64"]),
        ("--input-value sizes=[1,2]", ["--input-value sizes=[1,2]"]),
        ("--input-shape 'x=1,3,32*h' --shape x=1x3xH:32..960", []),
        ("give shapes (--input-shape), or [--json]", []),
        ("--tune 20, --strip; `--threads N`.", []),
    ],
)
def test_what_is_found(text: str, expected: list[str]) -> None:
    assert unquoted(text) == expected
