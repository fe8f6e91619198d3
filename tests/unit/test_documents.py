"""What the documents name is there, and what is generated of them is what the code says."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from aot.cli import main as cli
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import figures
import generate_tables
import op_tables

FOLDERS = ("docs", "benchmarks", "samples")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
ROOTS = "aot|runtime|targets|tests|samples|docs|benchmarks|[.]ci"
PLACE = re.compile(rf"(?:{ROOTS})/[\w./*-]+")
FILE = re.compile(r"(?![A-Z]+\.)[\w-]+\.(?:py|pyi|c|h|fbs|toml|sh|mjs|md)")
# names of headers as they are included, what an installed package has, and made-up examples
NO_PLACES = {
    *("aot/aot.h", "aot/state.h", "aot/text.h", "aot/vulkan.h"),  # as a C program includes them
    *("aot/_runtime", "tests/golden/passes/double-neg/"),
    *("batch.toml", "app.c", "on-phone.sh", "my-board.toml"),
}
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
SPAN = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^(?:    |\t)(.+)$", re.MULTILINE)
FENCED = re.compile(r"^```(?:sh)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
# `NAME` in `path`: also over the end of a line
NAMED = re.compile(rf"`([A-Za-z_]\w*)`(?:\s\w+)?\s+in\s+`((?:{ROOTS})/[\w./-]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _words(text: str) -> set[str]:
    """The words of a document's code, inline or in blocks, without punctuation around them."""
    code = [*SPAN.findall(text), *BLOCK.findall(text), *FENCED.findall(text)]
    return {word.strip('",;:()[]').partition("::")[0] for part in code for word in part.split()}


@cache
def _file_names() -> frozenset[str]:
    """The names, without folders, of all files of the project's folders."""
    folders = (ROOT / f for f in ("aot", "runtime", "targets", "tests", *FOLDERS, ".ci"))
    return frozenset(p.name for f in (*folders, ROOT) for p in f.glob("**/*" if f != ROOT else "*"))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    found = HEADING.findall(page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in plain}


def _missing(document: Path) -> list[str]:
    """Paths, file names, links and `NAME in path`s of a document that are not there."""
    text = document.read_text(encoding="utf-8")
    words = sorted(_words(text) - NO_PLACES)
    places = [w for w in words if PLACE.fullmatch(w) and not list(ROOT.glob(w.rstrip("/")))]
    files = [w for w in words if FILE.fullmatch(w) and w not in _file_names()]
    links = []
    for page, anchor in LINK.findall(text):
        path = document.parent / page if page else document
        if "://" not in page and not (path.exists() and (not anchor or anchor in _anchors(path))):
            links.append(f"{page}#{anchor}" if anchor else page)
    names = [f"{name} in {path}" for name, path in NAMED.findall(text) if not _has(path, name)]
    return [*places, *files, *links, *names]


def _has(place: str, name: str) -> bool:
    """Whether a file, or a file of a folder, has a word."""
    path = ROOT / place
    paths = path.rglob("*.*") if path.is_dir() else [path]
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(
        word.search(p.read_text(encoding="utf-8", errors="replace")) for p in paths if p.is_file()
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    assert _missing(document) == []


def test_a_missing_place_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What is there\n`aot/nowhere.py`, `aot/api.py`, [one](page.md), [other](gone.md)\n"
        "`compile` in `aot/api.py`, `RANKS` in\n`aot/api.py`; `layering.py`, `test_layering.py`\n"
        "[a](#what-is-there), [b](page.md#else), `pytest -x tests/unit/nothing.py::test_x`\n\n"
        "    python docs/never.py --check\n"
    )
    assert _missing(page) == [
        *("aot/nowhere.py", "docs/never.py", "tests/unit/nothing.py"),
        *("layering.py", "gone.md", "page.md#else", "RANKS in aot/api.py"),
    ]


@pytest.mark.sweep
def test_the_list_of_ops_is_generated() -> None:
    """It compiles all samples for all sorts of targets; `docs/generate_tables.py --check` too."""
    assert op_tables.page() == generate_tables.OPS.read_text(encoding="utf-8")


def test_figures_are_drawn_from_the_numbers() -> None:
    for path, made in figures.drawn():
        assert made == path.read_text(encoding="utf-8"), f"{path}: python docs/figures.py"


NAMES = ["README", "COMPARISON", "TARGETS", "ONNX", "CLI", "GGUF"]


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_generated(name: str) -> None:
    path = getattr(generate_tables, name)
    made = generate_tables.generate(path, getattr(generate_tables, f"{name}_SECTIONS"))
    assert made == path.read_text(encoding="utf-8")


def test_the_readme_counts_right() -> None:
    """Its numbers of targets, ONNX operators and GGUF architectures."""
    from aot.frontends.gguf.architectures import ARCHITECTURES
    from aot.target import files

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(files.names())} targets: " in text
    count = len(generate_tables.onnx_operators().split(", "))
    assert f"{count} ONNX operators" in text
    assert f"files of {len(ARCHITECTURES)} architectures" in text


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
            if isinstance(command, click.Group) and words:
                command = command.get_command(context, words.pop(0))
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
