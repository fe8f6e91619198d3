"""Renders the HTML of reports from their contents, with templates.

Everything that is not the templates' own text is escaped; what no page may hold is replaced.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from aot.driver.provenance import machine_text
from aot.report.contents import Module
from aot.report.measured import Measurements
from aot.report.numbers import readable, short

_FOLDER = Path(__file__).parent


def render(
    module: Module, measured: Measurements | None, run: Mapping[str, Any] | None = None
) -> str:
    """The HTML text of a page; `measured` is None if nothing was measured, and `run` if nothing is
    known of how the figures were made."""
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = _environment().get_template("page.html")
    facts = () if run is None else run_facts(run)
    return template.render(
        module=module,
        measured=measured,
        style=Markup(style),
        script=Markup(script),
        script_hash=digest,
        run=facts,
    )


def run_facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of each fact about a run that a page shows."""
    versions = [f"{name} {version}" for name, version in run["versions"].items()]
    facts = {
        "command": run["command"],
        "date": run["date"],
        "machine": machine_text(run),
        "versions": ", ".join([f"aotc {run['aotc']}", *versions]),
    }
    return [(name, text) for name, text in facts.items() if text]


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
