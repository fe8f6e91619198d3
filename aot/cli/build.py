"""The commands around compiling: `targets`, `cache`, and `build` for many compiles at once.

Thin, like `cli.py`, which registers them.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click

import aot
from aot.cli import text as cli_text
from aot.cli.compile import shown_progress
from aot.errors import AotError, CompileError
from aot.options import no_progress


@click.command()
@click.argument("target", metavar="[NAME|FILE.toml]", required=False)
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def targets(target: str | None, as_json: bool) -> None:
    """List the targets that come with the compiler, or explain one.

    \b
    Examples:
      aotc targets
      aotc targets aarch64-android
      aotc targets my-board.toml      checks a file of one's own, and shows what it says

    What a file may say is in docs/internals/add-a-target.md.
    """
    if target is not None:
        _explain(target, as_json=as_json)
        return
    found = aot.targets()
    if as_json:
        rows = [
            {"name": t.name, "device": t.device, "arch": t.arch, "summary": t.summary}
            for t in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    from aot.target.selection import host

    with suppress(AotError):
        click.echo(f"host is {host().name}\n")
    table_rows = [[t.name, t.device, t.arch, t.summary] for t in found]
    click.echo(cli_text.table(("target", "device", "arch", "summary"), table_rows))


def _explain(name: str, *, as_json: bool) -> None:
    from aot.target.model import describe
    from aot.target.selection import load
    from aot.target.toml import check_names

    target = load(name)
    if target.file:
        check_names(target)
    rows = [(key, _plain(value), meaning) for key, value, meaning in describe(target)]
    if as_json:
        facts = {"name": target.name, **{key: value for key, value, _ in rows}}
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(f"{target.name}: {target.summary}\n")
    shown = [
        [key, " ".join(map(str, value)) if isinstance(value, list) else str(value), meaning]
        for key, value, meaning in rows
        if key != "summary" and value not in ("", [])
    ]
    click.echo(cli_text.definitions(shown))


def _plain(value: Any) -> Any:
    """A value as JSON: tuples as lists, element types by name."""
    if isinstance(value, tuple):
        return [v if isinstance(v, int | str) else str(v) for v in value]
    return value


@click.command()
@click.argument("batch", metavar="BATCH.toml", type=click.Path())
@click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    help="Modules that may be compiled at a time. Default: one a processor.",
)
@click.option(
    "--scheduler",
    metavar="tcp://HOST:PORT",
    help="Compile on a Dask cluster: the address of its scheduler.",
)
@click.option("--cache-dir", type=click.Path(file_okay=False), metavar="DIR", help="Which cache.")
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def build(
    batch: str, jobs: int, scheduler: str | None, cache_dir: str | None, as_json: bool
) -> None:
    """Build the models x targets x options of a file, and show what became of each.

    \b
    Examples:
      aotc build batch.toml
      aotc build batch.toml --jobs 4 --json
      aotc build batch.toml --scheduler tcp://10.0.0.1:8786

    \b
    The file, of which targets and options may be left short:
      models = ["det.onnx", { path = "cls.onnx", input_shapes = { x = "1x3x48x192" } }]
      targets = ["host", "aarch64-android", ["x86-64-v2", "x86-64-v3"]]
      options = [{ name = "fp32" }, { name = "fp16", storage = "fp16" }]

    What is up to date by content is not built again. A module that fails stops no other; the exit
    code is then 1. docs/use/cli.md has all keys.
    """
    from aot.tools.batch.batch import FAILED, dask_executor
    from aot.tools.batch.batch import build as build_matrix

    with ExitStack() as stack:
        executor = stack.enter_context(dask_executor(scheduler)) if scheduler else None
        progress = stack.enter_context(shown_progress()) or no_progress
        rows = build_matrix(
            batch, executor=executor, jobs=jobs, cache_dir=cache_dir, progress=progress
        )
    click.echo(
        json.dumps(cli_text.matrix_facts(rows), indent=2)
        if as_json
        else cli_text.matrix_table(rows)
    )
    failed = sum(row.status == FAILED for row in rows)
    if failed:
        raise CompileError(f"{failed} of {len(rows)} modules could not be built")


@click.command()
@click.option("--clear", is_flag=True, help="Remove everything in it.")
@click.option("--info", is_flag=True, help="Show where it is and what it holds: the default.")
@click.option("--cache-dir", type=click.Path(file_okay=False), metavar="DIR", help="Which cache.")
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def cache(clear: bool, info: bool, cache_dir: str | None, as_json: bool) -> None:
    """Show or clear the cache of compiled code.

    \b
    Examples:
      aotc cache
      aotc cache --clear
      AOT_CACHE_DIR=/fast/aotc aotc cache --json

    What a compile finds here it need not compile again. Nothing is lost with it but time.
    """
    from aot.backends.cpu.object_cache import ObjectCache

    if clear and info:
        raise click.UsageError("--clear and --info exclude each other")
    found = ObjectCache.at(None if cache_dir is None else Path(cache_dir), is_used=False)
    facts = found.clear() if clear else found.info()
    if as_json:
        click.echo(json.dumps(cli_text.cache_facts(facts), indent=2))
    else:
        click.echo(cli_text.cache_summary(facts, is_cleared=clear))
