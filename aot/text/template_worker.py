"""Renders a chat template: a script that `chat.py` starts as a process of its own, with limits.

A template is a program of a stranger. Jinja's sandbox keeps it from reaching anything of Python's,
and the limits, which are set before it is read, keep it from running on and from taking memory.
Imports nothing of `aot`: starting must cost little.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

CPU_SECONDS = 5  # a template of a real model takes milliseconds
MEMORY_BYTES = 512 << 20
MOST_TEXT = 16 << 20  # characters that all conversations of a request become
MOST_MESSAGE = 400  # characters of an error's message


def _limit(names: dict[str, int]) -> None:
    """Sets limits of this process, where the system has them: Windows has none of them, macOS no
    limit of memory. The parent's patience is the limit there."""
    try:
        import resource
    except ImportError:
        return
    for name, limit in names.items():
        which = getattr(resource, name, None)
        if which is not None:
            # A second more until the process is killed: the signal before says what ended it.
            with suppress(ValueError, OSError):
                resource.setrlimit(which, (limit, limit + (name == "RLIMIT_CPU")))


def _environment(*, tells_time: bool) -> Any:
    """The environment of a template: what transformers provides, and the date only if requested."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(
        value, ensure_ascii=False, indent=how.get("indent")
    )
    environment.globals["raise_exception"] = refuse
    if tells_time:
        environment.globals["strftime_now"] = time.strftime
    return environment


def _said(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    return " ".join(str(error).split())[:MOST_MESSAGE] or type(error).__name__


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Renders a template for each conversation of a request.

    Args:
        request: `template`; `variables` of all conversations; those of each in `conversations`;
            `tells_time`.

    Returns:
        `unread`, why the template is none; or `texts`, of each conversation a text and why there is
        none, one of them None.
    """
    environment = _environment(tells_time=request["tells_time"])
    _limit({"RLIMIT_FSIZE": 0})  # after the imports, of which Python may keep a compiled form
    try:
        template = environment.from_string(request["template"])
    except Exception as error:
        return {"unread": _said(error)}
    texts: list[tuple[str | None, str | None]] = []
    room = MOST_TEXT
    for own in request["conversations"]:
        try:
            text = str(template.render(**request["variables"], **own))
            text.encode()  # a template may write half of a surrogate pair
        except Exception as error:
            texts.append((None, _said(error)))
            continue
        room -= len(text)
        if room < 0:
            texts.append((None, f"it writes more than {MOST_TEXT >> 20} Mi characters"))
            break
        texts.append((text, None))
    return {"texts": texts}


def _main(arguments: list[str]) -> None:
    seconds, memory, *folders = arguments
    _limit({"RLIMIT_CORE": 0, "RLIMIT_CPU": int(seconds), "RLIMIT_AS": int(memory)})
    sys.path += folders
    result = answer(json.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(json.dumps(result).encode())


if __name__ == "__main__":
    _main(sys.argv[1:])
