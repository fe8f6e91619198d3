"""What the documents name is there, and what is generated of them is what the code says."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aot.cli import main as cli
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import generate_tables
import op_tables

FOLDERS = ("docs", "benchmarks", "samples")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
PLACE = re.compile(r"`((?:aot|runtime|targets|tests|samples|docs|benchmarks)/[\w./*-]+)`")
# names of headers as they are included, what an installed package has, and made-up examples
NO_PLACES = {
    *("aot/aot.h", "aot/state.h", "aot/text.h", "aot/vulkan.h"),  # as a C program includes them
    *("aot/_runtime", "tests/golden/passes/double-neg/"),
}
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _missing(document: Path) -> list[str]:
    text = document.read_text(encoding="utf-8")
    found = [p for p in PLACE.findall(text) if p not in NO_PLACES]
    places = [p for p in found if not list(ROOT.glob(p.rstrip("/")))]
    links = [
        link
        for link in LINK.findall(text)
        if "://" not in link and not (document.parent / link).exists()
    ]
    return places + links


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    assert _missing(document) == []


def test_a_missing_place_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`aot/nowhere.py`, `aot/api.py`, [one](page.md), [other](gone.md)")
    assert _missing(page) == ["aot/nowhere.py", "gone.md"]


@pytest.mark.sweep
def test_the_list_of_ops_is_generated() -> None:
    """It compiles all samples for all sorts of targets; `docs/generate_tables.py --check` too."""
    assert op_tables.page() == generate_tables.OPS.read_text(encoding="utf-8")


def test_the_readme_s_tables_are_generated() -> None:
    path = generate_tables.README
    made = generate_tables.generate(path, generate_tables.README_SECTIONS)
    assert made == path.read_text(encoding="utf-8")


# Words that only insiders understand, and the term to use.
TERMS = {
    r"near miss(es)?": "missed merge",
    r"journals?": "fusion remarks",
    r"lies": "is stored at, is at",
    r"(is|are|was|were) told": "is passed, is notified",
    r"(is|are|was|were) gone": "is removed",
    r"there once": "stored once, deduplicated",
    r"seen through": "mapped by",
    r"learnt": "measured, recorded",
    r"matrix (file|toml)": "batch file",
    r"on_host": "cpu_fallback",
}
JARGON = re.compile(rf"\b({'|'.join(TERMS)})\b", re.IGNORECASE)


def _jargon(text: str) -> list[str]:
    return [match[0] for match in JARGON.finditer(" ".join(text.split()))]


def _strings(path: Path) -> Iterator[str]:
    """The strings of a source, parts of f-strings included, but for docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)]
    for node in ast.walk(tree):
        if (
            node not in statements
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
        ):
            yield node.value


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_document_uses_the_project_s_terms(document: Path) -> None:
    assert _jargon(document.read_text(encoding="utf-8")) == []


def test_messages_and_help_texts_use_the_project_s_terms() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in sorted((ROOT / "aot").rglob("*.py"))
        for text in _strings(path)
        for word in _jargon(text)
    }
    assert found == set()


def test_jargon_is_found(tmp_path: Path) -> None:
    assert _jargon("It is there\nonce; two Near Misses. It believes.") == [
        "there once",
        "Near Misses",
    ]
    source = tmp_path / "source.py"
    source.write_text('"""It is gone."""\nmessage = f"{1} lies here"\n')
    assert [_jargon(text) for text in _strings(source)] == [["lies"]]


# A command line in a block of code, or in back quotes; lines may go on after a backslash.
COMMAND = re.compile(r"(?:^(?:    )?|`|&& )aotc ((?:[^`\n\\#]|\\\n)+)", re.MULTILINE)


def _wrong_commands(text: str) -> list[str]:
    """The command lines of a document that name a command or an option that does not exist."""
    wrong = []
    with click.Context(cli.cli) as context:
        for line in COMMAND.findall(text):
            name, *words = line.replace("\\\n", " ").split()
            command = cli.cli.get_command(context, name.rstrip(",.;:"))
            if command is None:
                wrong += [line] if name.islower() and name.isalpha() else []
                continue
            known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
            options = {w.partition("=")[0].rstrip(",.;:)]") for w in words if w.startswith("--")}
            wrong += [line] if options - known - {"--help"} else []
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_document_exist(document: Path) -> None:
    assert _wrong_commands(document.read_text(encoding="utf-8")) == []


def test_a_wrong_command_is_found() -> None:
    text = "`aotc bench m.aotm --cold`\n\n    aotc bench m.aotm --hot\n    aotc brew tea\n"
    assert _wrong_commands(text) == ["bench m.aotm --hot", "brew tea"]
