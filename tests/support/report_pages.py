"""A report's page as tests read it: its figures, its tables and what it would load."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from html.parser import HTMLParser

from tests.support.paths import ROOT

# elements that have no end
VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})
# what could load something, or do something
FORBIDDEN = frozenset({"img", "link", "iframe", "object", "embed", "base", "form"})


@dataclass
class Page(HTMLParser):
    """Attributes:
    figures: by `data-key`, the number and the text.
    tables: by class, the texts of the cells by row, the head left out.
    text: all that is shown.
    tags: each element that begins, with its attributes.
    """

    source: str
    figures: dict[str, tuple[float, str]] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    text: str = ""
    script: str = ""
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self._figure: tuple[str, float] | None = None
        self._table: list[list[str]] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"not ended: {self._open}"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "data" and found.get("data-key"):
            self._figure = str(found["data-key"]), float(found["value"] or "nan")
        elif tag == "table":
            self._table = self.tables.setdefault(found.get("class") or "", [])
        elif tag == "tr":
            self._table.append([])
        elif tag == "td":
            self._table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> ends {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self._open or "script" in self._open:
            self.script += data if "script" in self._open else ""
            return
        self.text += data
        if self._figure is not None:
            key, value = self._figure
            assert key not in self.figures, f"{key} twice"
            self.figures[key], self._figure = (value, data), None
        if "td" in self._open:
            self._table[-1][-1] += data

    def rows(self, kind: str) -> list[list[str]]:
        """The rows of the tables of a class, spaces made one."""
        found = [[" ".join(cell.split()) for cell in row] for row in self.tables.get(kind, [])]
        return [row for row in found if row]

    def check_alone(self) -> None:
        """Fails where the page would load anything, or run what is not its own script."""
        script = (ROOT / "aot" / "report" / "page.js").read_text(encoding="utf-8")
        assert self.script == script and [t for t, _ in self.tags].count("script") == 1
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"; script-src 'sha256-{digest}'\"" in self.source
        for tag, attributes in self.tags:
            assert tag not in FORBIDDEN, tag
            for name, value in attributes.items():
                assert not name.startswith("on"), (tag, name)
                is_own = name != "href" or (value or "").startswith("#")
                assert is_own and name not in ("src", "srcset", "action"), (tag, name, value)
        for word in ("@import", "url(", 'http-equiv="refresh'):
            assert word not in self.source
