"""The page of the runtime's sizes tells of all its parts, and the README quotes it."""

from __future__ import annotations

import re
import sys

from tests.support.paths import ROOT, RUNTIME

sys.path.insert(0, str(ROOT / "docs"))

import runtime_sizes

FOLDERS = ("src", "drivers/cpu", "drivers/vulkan", "cores", "extras", "state", "text")


def page() -> str:
    """The page as it is in the checkout."""
    return runtime_sizes.PAGE.read_text(encoding="utf-8")


def test_every_source_is_in_one_part() -> None:
    parts = [
        path
        for patterns, without in runtime_sizes.PARTS.values()
        for path in runtime_sizes.files_of(patterns, without)
    ]
    sources = [path for folder in FOLDERS for path in RUNTIME.glob(f"{folder}/*.c")]
    assert sorted(parts) == sorted(sources)


def test_the_page_has_every_part() -> None:
    for name in (*runtime_sizes.PARTS, *runtime_sizes.LINKED):
        assert len(re.findall(rf"^\| {name} \|.*\d", page(), re.MULTILINE)) == 1


def test_the_readme_quotes_the_page() -> None:
    row = re.search(r"\| an application, threads \| ([\d,]+) \| [\d,]+ \| ([\d,]+) \|", page())
    assert row is not None
    code, file = (round(int(number.replace(",", "")) / 1000) for number in row.groups())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"adds {file} KB to a program that links it, {code} KB of them code" in readme


def test_the_ceiling_is_that_of_the_script() -> None:
    limit = re.search(r"LIMIT:-(\d+)", (RUNTIME / "tools" / "text_size.sh").read_text())
    assert limit is not None
    assert f"above {int(limit[1]):,} bytes of code" in page()


def test_packages_for_webassembly_have_the_size_that_their_page_says() -> None:
    row = re.search(r"\| any model \| ([\d,]+) \|", page())
    assert row is not None
    size = round(int(row[1].replace(",", "")) / 1000)
    text = (ROOT / "docs" / "use" / "packaging.md").read_text(encoding="utf-8")
    assert f"all of it, {size} KB" in text
