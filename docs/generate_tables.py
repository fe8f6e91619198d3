"""Generates what of the documentation follows from the code: README.md's tables, the list of ops.

    python docs/generate_tables.py [--check]

Owns what stands between `generated:` markers of README.md and nothing else of it, and ops.md whole.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
OPS = ROOT / "docs" / "internals" / "ops.md"
sys.path.insert(0, str(ROOT))

DEVICES = {"cpu": "CPU", "vulkan": "GPU"}


def targets_table() -> str:
    """One row a target file."""
    import aot

    rows = ["| target | for | device |", "|---|---|---|"]
    rows += [f"| `{t.name}` | {t.summary} | {DEVICES[t.device]} |" for t in aot.targets()]
    return "\n".join(rows)


def onnx_operators() -> str:
    """Names in alphabetical order."""
    from aot.frontends.onnx import CONTROL, supported_ops

    names = sorted({name for domain, name, _ in supported_ops() if domain == ""} | set(CONTROL))
    return textwrap.fill(", ".join(names) + ".", 120, break_on_hyphens=False)


SECTIONS = {"targets": targets_table, "onnx": onnx_operators}


def generate(text: str) -> str:
    """`text` with its sections made anew.

    Raises:
        ValueError: the markers of a section are missing.
    """
    for name, make in SECTIONS.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{README}: markers of section {name!r} are missing")
        section = f"{begin}\n{make()}\n{end}"
        text = pattern.sub(lambda _, section=section: section, text)  # type: ignore[misc]
    return text


def main() -> int:
    """Writes the files, or with --check says which are out of date (exit status 1)."""
    import op_tables

    parser = argparse.ArgumentParser(description="Generates tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    status = 0
    for path, make in (
        (README, lambda: generate(README.read_text(encoding="utf-8"))),
        (OPS, op_tables.page),
    ):
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = make()
        if new == old:
            continue
        if options.check:
            sys.stderr.write(
                f"{path.relative_to(ROOT)} is out of date: python docs/generate_tables.py\n"
            )
            status = 1
        else:
            path.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
