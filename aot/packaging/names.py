"""Turns names of models and tensors into C identifiers."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Words that C or C++ keep for themselves, as far as a model's names are likely to be one
_RESERVED = frozenset(
    (
        *("alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char"),
        *("class", "const", "continue", "default", "delete", "do", "double", "else", "enum"),
        *("explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if"),
        *("inline", "int", "long", "mutable", "namespace", "new", "not", "operator", "or"),
        *("private", "protected", "public", "register", "restrict", "return", "short", "signed"),
        *("sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "try"),
        *("typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile"),
        *("while", "xor"),
    )
)


def identifier(text: str) -> str:
    """`text` with characters that C identifiers cannot contain replaced by "_"; never empty, never
    a keyword."""
    name = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_").lower() or "model"
    return f"m_{name}" if name[0].isdigit() or name in _RESERVED else name


def identifiers(texts: Iterable[str]) -> list[str]:
    """A distinct C identifier for each text; equal ones get a number appended.

    None is another's with "_dims" behind it, which is what a tensor's extents are called.
    """
    found: list[str] = []
    taken: set[str] = set()
    for text in texts:
        name = base = identifier(text)
        number = 2
        while {name, f"{name}_dims"} & taken:
            name = f"{base}_{number}"
            number += 1
        found.append(name)
        taken |= {name, f"{name}_dims"}
    return found
