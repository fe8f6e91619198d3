"""What the documents name is there, and what is generated of them is what the code says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import generate_tables
import op_tables

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)
PLACE = re.compile(r"`((?:aot|runtime|targets|tests|samples|docs|benchmarks)/[\w./*-]+)`")
# names of headers as they are included, what an installed package has, and made-up examples
NO_PLACES = {"aot/aot.h", "aot/vulkan.h", "aot/_runtime", "tests/golden/passes/double-neg/"}
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


def test_the_list_of_ops_is_generated() -> None:
    assert op_tables.page() == generate_tables.OPS.read_text(encoding="utf-8")


def test_the_readme_s_tables_are_generated() -> None:
    path = generate_tables.README
    made = generate_tables.generate(path, generate_tables.README_SECTIONS)
    assert made == path.read_text(encoding="utf-8")
