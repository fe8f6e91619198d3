"""Renders the HTML of reports from their contents, with templates.

Everything that is not the templates' own text is escaped; what no page may hold is replaced.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from aot.report.contents import Module
from aot.report.measured import Measurements
from aot.report.numbers import readable, short

_FOLDER = Path(__file__).parent


def render(module: Module, measured: Measurements | None) -> str:
    """The HTML text of a page; `measured` is None if nothing was measured."""
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    template = _environment().get_template("page.html")
    return template.render(module=module, measured=measured, style=Markup(style))


@cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_final,
    )
    found.filters["short"] = short
    return found


def _final(value: Any) -> Any:
    """The value of a template's expression with unprintable characters replaced, before it is
    escaped."""
    return readable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
