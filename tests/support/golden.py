"""Golden texts: expected output beside its input in tests/golden, rewritten by `pytest --bless`.

A pass's case is a file `tests/golden/passes/GROUP/NAME.ir`: comments that say what is shown and
what is run, the IR before, a line `# ----`, and the IR after (or `# error: ...`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import GOLDEN as ROOT

SEPARATOR = "# ----\n"


@dataclass(frozen=True)
class Case:
    """A case file.

    Attributes:
        settings: values of the `# key: value` lines in front, by key; other comments are for the
            reader.
        before: the text above the separator, comments included.
        after: what is below it; "" in a case that was never blessed.
    """

    path: Path
    settings: dict[str, list[str]]
    before: str
    after: str

    @staticmethod
    def read(path: Path) -> Case:
        before, _, after = path.read_text(encoding="utf-8").partition(SEPARATOR)
        settings: dict[str, list[str]] = {}
        for line in before.splitlines():
            if not line.startswith("#"):
                break
            key, colon, value = line[1:].partition(":")
            if colon and " " not in key.strip():
                settings.setdefault(key.strip(), []).append(value.strip())
        return Case(path, settings, before, after)

    def one(self, key: str, default: str = "") -> str:
        """The value of a setting that is given at most once."""
        (value,) = self.settings.get(key, [default])
        return value


def cases(group: str) -> list[Path]:
    """The case files in tests/golden/GROUP and below, sorted."""
    return sorted((ROOT / group).rglob("*.ir"))


def case_id(path: Path) -> str:
    return "/".join(path.with_suffix("").parts[-2:])


def check_case(path: Path, run: Callable[[Case], str], *, bless: bool) -> None:
    """Whether `run` gives what the case expects; with `bless`, makes it expect what `run` gives."""
    case = Case.read(path)
    found = run(case)
    if bless:
        path.write_text(f"{case.before.rstrip()}\n\n{SEPARATOR}{found}", encoding="utf-8")
        return
    assert_same(found, case.after, path)


def check(name: str, found: str, *, bless: bool) -> None:
    """Whether `found` is what tests/golden/NAME holds; with `bless`, writes it."""
    path = ROOT / name
    if bless:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    assert_same(found, path.read_text(encoding="utf-8") if path.exists() else "", path)


def assert_same(found: str, expected: str, path: Path) -> None:
    """An assertion whose message is a diff and says how to accept it."""
    if found != expected:
        diff = "".join(
            difflib.unified_diff(
                expected.splitlines(True), found.splitlines(True), "expected", "found"
            )
        )
        raise AssertionError(
            f"{path.relative_to(ROOT.parent)} differs; if that is right, run "
            f"pytest with --bless\n{diff}"
        )
