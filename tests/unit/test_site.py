"""The site has all pages and what they link to, and a reference of everything that is public.

`.ci/run` builds it with the generator, which checks each link.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import aot
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import build_site


def test_pages_and_what_they_link_to_are_copied(tmp_path: Path) -> None:
    build_site.assemble(tmp_path)
    for name in (
        "README.md",
        "docs/use/cli.md",
        "docs/figures/peers-dark.svg",
        "docs/notebook.ipynb",
    ):
        assert (tmp_path / "pages" / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_order_names_each_page_once(tmp_path: Path) -> None:
    text = build_site.settings(tmp_path)
    named = re.findall(r"^\s+- .*?([\w./-]+\.md)$", text, re.MULTILINE)
    assert len(named) == len(set(named))
    made = {"reference/python.md", "reference/c.md"}
    assert set(named) == {str(page) for page in build_site.pages()} | made


def test_references_have_all_that_is_public() -> None:
    page = build_site.python_reference()
    for name in set(aot.__all__) - {"__version__", "builder"}:
        assert re.search(rf"^::: aot\.[\w.]+\.{name}$", page, re.MULTILINE), name
    declared = build_site.c_reference()
    for header in build_site.HEADERS.glob("*.h"):
        for function in re.findall(r"^AOT_API .*?\b(aot_\w+)\(", header.read_text(), re.MULTILINE):
            assert f"{function}(" in declared


@pytest.mark.parametrize("header", sorted(build_site.HEADERS.glob("*.h")), ids=lambda p: p.name)
def test_headers_lose_their_guards_alone(header: Path) -> None:
    text = header.read_text(encoding="utf-8")
    intro, declarations = build_site.split_header(text)
    assert intro.startswith("//") and text.startswith(intro)
    assert "_H_" not in declarations and "#ifdef __cplusplus" not in declarations
    lines = {line for line in text.splitlines() if not line.startswith(("#", "}", "extern"))}
    assert {line for line in declarations.splitlines() if not line.startswith(("#", "}"))} <= lines
