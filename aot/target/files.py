"""Where the files of the shipped targets are, and what they are called, without reading them whole.

Needs no other part of the compiler, so that a shell's completion can ask in a few milliseconds.
"""

from __future__ import annotations

import re
from pathlib import Path

HOST = "host"
"""The name that stands for this machine's best target."""

_SUMMARY = re.compile(r'^summary = "(.*)"$', re.MULTILINE)


def directory() -> Path:
    """The folder of target files: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_targets"
    return installed if installed.is_dir() else package.parent / "targets"


def names() -> tuple[str, ...]:
    """The names of the targets that come with the compiler, sorted."""
    return tuple(sorted(path.stem for path in directory().glob("*.toml")))


def summaries() -> dict[str, str]:
    """The summary of each shipped target by its name, in the order of the names."""
    found = {}
    for name in names():
        match = _SUMMARY.search((directory() / f"{name}.toml").read_text(encoding="utf-8"))
        found[name] = "" if match is None else match[1]
    return found
