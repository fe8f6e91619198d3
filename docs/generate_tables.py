"""Generates the tables of README.md that follow from the code: targets, and ONNX operators.

    python docs/generate_tables.py [--check]

Owns what stands between `generated:` markers of README.md, and nothing else of it.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
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
    from aot.frontends.onnx import supported_ops

    names = sorted({name for domain, name, _ in supported_ops() if domain == ""})
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
    """Writes the README, or with --check says whether it is out of date (exit status 1)."""
    parser = argparse.ArgumentParser(description="Generates the tables of README.md.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    old = README.read_text(encoding="utf-8")
    new = generate(old)
    if options.check and new != old:
        sys.stderr.write("README.md is out of date: python docs/generate_tables.py\n")
        return 1
    if new != old:
        README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
