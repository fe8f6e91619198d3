"""Builds the site from the pages of the repository, offline.

    python docs/build_site.py OUT

Owns which files are pages, and the references of Python and C, which are made of the sources. A
link or an anchor that leads nowhere ends the build. Needs the extra `site`.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "docs" / "site" / "mkdocs.yml"
HEADERS = ROOT / "runtime" / "include" / "aot"
PAGES = ("*.md", "docs/**/*.md", "samples/*/README.md", "benchmarks/**/*.md")
# The slugs of headings that forges make, which links within pages go by
SLUGIFY = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
LINK = re.compile(r"\]\(([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"")


def pages() -> list[Path]:
    """All pages, relative to the repository."""
    found = {path.relative_to(ROOT) for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(found)


def files_of(page: Path) -> Iterator[Path]:
    """Files of the repository that a page links to and that are no pages themselves."""
    for link, source in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        target = link or source
        if "://" in target or target.endswith(".md"):
            continue
        path = (ROOT / page.parent / target).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path.relative_to(ROOT)


def public_names() -> dict[str, str]:
    """The modules of aot's public names, which it imports when they are used."""
    tree = ast.parse((ROOT / "aot" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_WHERE":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ValueError("aot/__init__.py has no table _WHERE")


def python_reference() -> str:
    """A page with the docstring of each public name, functions first."""
    names = sorted(public_names().items(), key=lambda item: (item[0][0].isupper(), item[0]))
    errors = ("AotError", "CompileError", "UnsupportedError", "RuntimeFailure", "InternalError")
    entries = [f"::: {module}.{name}" for name, module in names]
    entries += [f"::: aot.errors.{name}" for name in errors]
    intro = "All of these are attributes of `aot`: `import aot; aot.compile(...)`."
    builder = "::: aot.builder.Builder"
    return "\n\n".join(["# Python", intro, *entries, builder, ""])


def c_reference() -> str:
    """A page with what each public header says and declares."""
    parts = ["# C", "The headers of `runtime/include/aot`, which an installed package has, too."]
    for header in sorted(HEADERS.glob("*.h"), key=lambda p: (p.name != "aot.h", p.name)):
        intro, declarations = split_header(header.read_text(encoding="utf-8"))
        parts += [f"## aot/{header.name}", f"```c\n{intro}\n```", f"```c\n{declarations}\n```"]
    return "\n\n".join([*parts, ""])


def split_header(text: str) -> tuple[str, str]:
    """(the comment that a header begins with, its declarations without guards and linkage)."""
    lines = text.splitlines()
    count = next(n for n, line in enumerate(lines) if not line.startswith("//"))
    body = "\n".join(lines[count:])
    body = re.sub(r"^#ifdef __cplusplus\n(?:extern .*|}.*)\n#endif\n", "", body, flags=re.M)
    body = re.sub(r"^#(?:ifndef|define|endif)\b.*AOT_\w+_H_.*\n?", "", body, flags=re.M)
    body = re.sub(r"^#ifndef AOT_API\n(?:.*\n)*?#endif\n#endif\n", "", body, flags=re.M)
    return "\n".join(lines[:count]), re.sub(r"\n{3,}", "\n\n", body).strip()


def settings(folder: Path) -> str:
    """The generator's settings, with the pages of how it works in the order of docs/README.md."""
    text = SETTINGS.read_text(encoding="utf-8")
    table = (ROOT / "docs" / "README.md").read_text(encoding="utf-8").partition("# How it works")[2]
    listed = list(dict.fromkeys(re.findall(r"\]\((internals/[\w-]+\.md)", table)))
    named = set(re.findall(r"docs/(internals/[\w-]+\.md)", text))
    inner = ["ARCHITECTURE.md", *(f"docs/{page}" for page in listed if page not in named)]
    lines = "".join(f"\n      - {page}" for page in inner)
    text = text.replace(" INTERNALS", lines).replace("SLUGIFY", SLUGIFY)
    return text.replace("ROOT", f'"{ROOT}"')


def assemble(folder: Path) -> None:
    """Writes the settings, the pages and what they link to into a folder."""
    sources = pages()
    for path in dict.fromkeys([*sources, *(f for page in sources for f in files_of(page))]):
        target = folder / "pages" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    reference = folder / "pages" / "reference"
    reference.mkdir()
    (reference / "python.md").write_text(python_reference(), encoding="utf-8")
    (reference / "c.md").write_text(c_reference(), encoding="utf-8")
    (folder / "mkdocs.yml").write_text(settings(folder), encoding="utf-8")


def main() -> int:
    """Builds the site; returns the generator's exit status."""
    parser = argparse.ArgumentParser(description="Builds the site of the documentation, offline.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of the site")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aotc-site-") as name:
        assemble(Path(name))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        command += ["--config-file", str(Path(name) / "mkdocs.yml")]
        command += ["--site-dir", str(options.out.resolve())]
        quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(command, check=False, env=quiet).returncode


if __name__ == "__main__":
    sys.exit(main())
