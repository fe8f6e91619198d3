"""Reports on a compile or a benchmark: one HTML file each.

Owns the page's form: `contents` and `measured` choose what it says, `drawings` and `graphs` its
pictures. The file needs no network, is whole without its script, and is the same bytes for the same
facts. Finds nothing out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aot.link.files import write_atomically
from aot.report.contents import Module
from aot.report.measured import Measurements
from aot.report.page import render

if TYPE_CHECKING:
    from aot.report.details import Details

__all__ = ["bench_page", "compile_page", "write_page"]


def compile_page(
    module: bytes,
    stats: Mapping[str, Any],
    details: Details,
    title: str = "",
    run: Mapping[str, Any] | None = None,
) -> str:
    """The HTML page of a compile.

    Args:
        module: the file's bytes.
        stats: with the keys of `aotc compile --stats`.
        title: what the module is called; the name of its entry point if empty.
        run: facts of `aot.driver.provenance`; not shown if None.
    """
    return render(Module.compiled(module, stats, details, title), None, run)


def bench_page(
    module: str | os.PathLike[str],
    facts: Mapping[str, Any],
    run: Mapping[str, Any] | None = None,
) -> str:
    """The HTML page of a benchmark.

    Args:
        module: the file that was measured.
        facts: by kind, any of `steady`, `cold`, `against` and `shaders` as `aotc bench --json` has
            them, and `threads`: milliseconds by number of threads.
        run: facts of `aot.driver.provenance`; not shown if None.

    Raises:
        CompileError: the file has gone, or is no module any more.
    """
    return render(Module.of_file(module), Measurements.of(facts), run)


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Writes a page atomically.

    Raises:
        CompileError: `path` cannot be written.
    """
    write_atomically(path, [page.encode("utf-8", errors="replace")])
