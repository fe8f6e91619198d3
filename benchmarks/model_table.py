"""A page of docs/use whose table has a line for each reference model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "samples")]


def main(summary: str, page: Path, head: str, row: Callable[[str], str]) -> None:
    """Prints `row` of each model that the command line names, of all where it names none.

    Args:
        summary: what the script is for.
        page: where `--write` puts the table.
        head: what stands there before the lines.
        row: the line of a model, by its name.
    """
    import model_zoo

    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("models", nargs="*", default=list(model_zoo.MODELS))
    parser.add_argument("--write", action="store_true", help=f"write {page.relative_to(ROOT)}")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        rows.append(row(name))
        sys.stdout.write(rows[-1] + "\n")
        sys.stdout.flush()
    if arguments.write:
        page.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
