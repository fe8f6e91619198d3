"""How many lines of code folders have, without comments, docstrings and blank lines.

    python benchmarks/code_lines.py aot/kernels aot/kernels/rules tests/unit/kernels
    python benchmarks/code_lines.py aot/kernels --without aot/kernels/proof

A line is of a folder, how many files and lines of code it has, its longest file and its longest
function with what docstrings leave of them.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

_SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> set[int]:
    """The numbers of the lines on which there is code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body = node.body if isinstance(node, _DOCUMENTED) else []
        for statement in body:
            said = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                found -= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def functions(source: str) -> Iterator[tuple[int, str]]:
    """The lines of code of each function, and its name."""
    lines = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            yield len(lines & set(own)), node.name


def report(folder: Path, without: Sequence[Path]) -> str:
    """The line of a folder."""
    sources = {
        path: path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
        if not any(path.is_relative_to(other) for other in without)
    }
    total = sum(len(code_lines(text)) for text in sources.values())
    longest = max((text.count("\n"), path.name) for path, text in sources.items())
    function = max(found for text in sources.values() for found in functions(text))
    return (
        f"{folder}: {len(sources)} files, {total:,} lines of code; the longest file {longest[1]} "
        f"({longest[0]} lines), the longest function {function[1]} ({function[0]})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--without", nargs="+", type=Path, default=[], metavar="FOLDER")
    options = parser.parse_args()
    for folder in options.folders:
        print(report(folder, options.without))


if __name__ == "__main__":
    main()
