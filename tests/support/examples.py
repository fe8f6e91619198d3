"""The examples of documents: blocks of code with a marker that says whether a test runs them.

<!-- run: NAME -->          the next block is run as it stands, in a folder with small models
<!-- run slowly: NAME -->   the same, with `pytest -m sweep`: it takes more than a few seconds
<!-- not run: REASON -->    it is not, and why
<!-- tested: PATH -->       a test of its own runs it; so with `command`, which that test finds
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "samples").glob("*/README.md")),
]
LANGUAGES = ("sh", "python", "c", "js", "toml")
_COMMANDS = r"(?:aotc|aot-run|pip|python|python3|pytest|cmake|adb|npm|git|make|gcc|clang)\b"
# a fenced block of a language, or an indented one that begins with a command, with its marker
_BLOCK = re.compile(
    r"(?:^<!-- (?P<kind>[a-z ]+): (?P<what>[^\n]+?) -->\n\n?)?"
    rf"(?:^```(?P<language>{'|'.join(LANGUAGES)})\n(?P<fenced>.*?)^```$"
    rf"|(?:(?<=\n\n)|(?<=-->\n))(?P<indented>(?: {{4}}{_COMMANDS}[^\n]*\n)(?: {{4}}[^\n]*\n)*))",
    re.MULTILINE | re.DOTALL,
)
_WHOLE = re.compile(r"^<!-- examples (?P<kind>not run|tested): (?P<what>[^\n]+) -->$", re.MULTILINE)
KINDS = ("run", "run slowly", "not run", "tested", "command")


@dataclass(frozen=True)
class Example:
    """A block of code of a page.

    Attributes:
        kind: of its marker, one of `KINDS`; "" without one.
        what: that the marker says: a name, a reason or a path.
    """

    page: Path
    kind: str
    what: str
    language: str
    code: str

    @property
    def name(self) -> str:
        """Its page and the name that its marker has."""
        return f"{self.page.relative_to(ROOT)}-{self.what}"


def examples_of(page: Path) -> Iterator[Example]:
    """The examples of a page, in its order; those without a marker have the page's, if it has one:
    `<!-- examples not run: REASON -->` or `<!-- examples tested: PATH -->`."""
    text = page.read_text(encoding="utf-8")
    whole = _WHOLE.search(text)
    for match in _BLOCK.finditer(text):
        indented = match["indented"]
        code = re.sub(r"^ {4}", "", indented, flags=re.M) if indented else match["fenced"]
        language = "sh" if indented else match["language"]
        marker = match if match["kind"] or whole is None else whole
        yield Example(page, marker["kind"] or "", marker["what"] or "", language, code)
