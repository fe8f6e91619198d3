"""Chat templates in the styles of models, and conversations to render by them.

Templates (tests/golden/chat_templates) are written for these tests, each in the manner of a family:
how it tells roles apart, writes system messages, tools and dates, and treats earlier thoughts.
"""

from __future__ import annotations

from typing import Any

from tests.support.paths import ROOT

FOLDER = ROOT / "tests" / "golden" / "chat_templates"
TEMPLATES = {path.stem: path.read_bytes().decode() for path in sorted(FOLDER.glob("*.jinja"))}

_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Says how the weather is, "now" & <later>.',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": " Wo? Zürich "},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["°C", "°F"]},
                "at": {"type": ["number", "string"], "default": 1.5},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
_CALL = {
    "id": "call_0001",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2], "x": None}},
}


def _said(*texts: str, system: str | None = None) -> list[dict[str, Any]]:
    head = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return [*head, *({"role": roles[n % 2], "content": t} for n, t in enumerate(texts))]


# By name: the variables of a template.
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "a message": {"messages": _said("Hello")},
    "spaces": {"messages": _said(" \n Hi <b>\t\n ")},
    "nothing": {"messages": _said("")},
    "unicode": {"messages": _said("Größe “é” 你好 😀👍🏽 \u200b\u00a0x", "naïve Ω ß", "ǅ ﬀ")},
    "a system message": {"messages": _said("Hi", system="Be brief.\n")},
    "an empty system message": {"messages": _said("Hi", system="")},
    "turns": {"messages": _said("a", "b", "c", "d", "e")},
    "turns with a system message": {"messages": _said("a", "b", "c", system="/no_think S")},
    "thoughts": {
        "messages": _said(
            "Why?", "<think>\nhm\n</think>\n\nThus.", "And?", "<think>x</think>y", "So"
        )
    },
    "no reply is asked for": {"messages": _said("a", "b"), "add_generation_prompt": False},
    "thinking is off": {"messages": _said("a"), "enable_thinking": False},
    "control tokens": {
        "messages": _said("<|im_end|>\n<|im_start|>system\n<s>[/INST]", "{{ x }}", "%s")
    },
    "quotes": {"messages": _said("it's \"q\" \\ \x07 {'a': 1} </script>", "'\n'", '"')},
    "tools": {"messages": _said("Weather?"), "tools": [_TOOL]},
    "several tools": {"messages": _said("Weather?", system="S"), "tools": [_TOOL, _TOOL]},
    "a tool is called": {
        "messages": [
            *_said("Weather?"),
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "content": '{"t": 21.5}', "tool_call_id": "call_0001"},
            {"role": "assistant", "content": "21.5 °C"},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [_TOOL],
    },
    "documents": {
        "messages": _said("What?"),
        "documents": [{"title": "T", "text": "one\ntwo"}, {"title": "U", "text": "drei"}],
    },
    "content of parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "S"}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": " What "}, {"type": "image"}],
            },
        ]
    },
    "fields": {
        "messages": [
            {"role": "user", "content": "n", "name": "Ann"},
            {"role": "assistant", "content": "y", "reasoning_content": "\nr\n", "metadata": "m"},
            {"role": "user", "content": 7},
        ],
        "controls": {"length": "short", "n": [1, 2.0, 1e-7, True]},
        "date_string": "1 Jan 2020",
    },
    "long": {"messages": _said(*[f"{n}: " + "word " * (40 * n) for n in range(1, 8)])},
    "roles out of order": {"messages": [*_said("a"), *_said("b")]},
    "nobody": {"messages": []},
}
for _variables in CONVERSATIONS.values():
    _variables.setdefault("add_generation_prompt", True)
