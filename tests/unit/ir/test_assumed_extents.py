"""Every guess of an extent that only the device knows is in one table, and used."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aot
from aot.ir import assumed_extents

ROOT = Path(aot.__file__).resolve().parent
TABLE = {name for name in vars(assumed_extents) if name.isupper()}
# the names under which a function hands on what it was given
HANDED_ON = {"unknown"}


def guesses(text: str) -> list[str]:
    """What calls of `dims.estimate` take for an unknown dim."""
    return [
        ast.unparse(call.args[1])
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "dims.estimate"
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dims.estimate(extent, 64)", ["64"]),
        ("known = dims.estimate(dims.substitute(dim, values), UNKNOWN)", ["UNKNOWN"]),
        ("estimate(dim, 3)", []),
    ],
)
def test_guesses_are_found(text: str, found: list[str]) -> None:
    assert guesses(text) == found


def test_guesses_are_in_the_table() -> None:
    used: set[str] = set()
    strays: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for guess in guesses(text):
            if guess not in TABLE | HANDED_ON:
                strays.append(f"{path.relative_to(ROOT)}: {guess}")
        if "aot.ir.assumed_extents import" in text:
            tree = ast.parse(text)
            used |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & TABLE
    assert not strays
    assert used == TABLE
