"""Jinja as Hugging Face's transformers configures it for chat templates: the oracle of rendering.

Written from transformers' documentation of chat templates (`apply_chat_template`): an immutable
sandbox with trim_blocks, lstrip_blocks, loop controls, the generation tag, json.dumps as `tojson`
without escapes, `raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2026, 3, 7, 14, 5, 9)  # what both clocks say
SECONDS = int((NOW - datetime(1970, 1, 1)).total_seconds())


class Generation(Extension):
    """{% generation %}: what the model writes; transformers keeps where it is."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


def environment() -> ImmutableSandboxedEnvironment:
    """What renders a chat template."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = NOW.strftime
    return made


def expected(template: str, variables: Mapping[str, Any]) -> str | None:
    """What Jinja renders; None where it fails."""
    usual = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False}
    try:
        return environment().from_string(template).render(**{**usual, **variables})
    except Exception:
        return None
