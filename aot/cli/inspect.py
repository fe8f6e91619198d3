"""`aotc merge`, `inspect` and `explain-dedup`: their options, and what they print.

Owns no facts: those are `aot.tools.merging`'s, `aot.tools.inspection`'s, `aot.driver.ledger`'s and
`aot.tools.explain_fusion`'s.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

import aot
from aot.cli import text as cli_text
from aot.cli.compile import (
    compile_keywords,
    compile_model,
    compile_options,
    module_source,
    refuse_compile_options,
)
from aot.frontends.registry import is_compiled


@click.command()
@click.argument("modules", metavar="FILE[:NAME]...", nargs=-1, required=True)
@click.option(
    "-o", "--output", required=True, metavar="OUT.aotm", help="The file to write ('-': stdout)."
)
@click.option(
    "--share-constants/--no-share-constants",
    default=True,
    help="Whether equal constants are stored once; without, each module keeps its own.",
)
@click.option("--stats", metavar="FILE", help="Write what was shared as JSON ('-': stdout).")
def merge(modules: tuple[str, ...], output: str, share_constants: bool, stats: str | None) -> None:
    """Merge module files into one that has an entry point for each and shares what is equal.

    \b
    Examples:
      aotc merge det.aotm cls.aotm rec.aotm -o ocr.aotm
      aotc merge old/det.aotm:before new/det.aotm:after -o both.aotm

    An entry point is called as its model was compiled ('aotc compile --entry-name'); where it was
    given no name, as its file without the extension; or NAME, after a colon. The files must be for
    the same targets. Results and speed are what they were; 'aotc run --entry NAME' runs one.
    """
    for module in modules:
        path = Path(module)
        if Path(output).exists() and path.exists() and Path(output).samefile(path):
            raise click.UsageError("the output is one of the modules")
    cli_text.check_output(output, stats)
    merged = aot.merge(modules, share_constants=share_constants)
    cli_text.write_module(merged, output)
    if stats is not None:
        cli_text.write_stats(merged.stats, stats)
    if sys.stderr.isatty():
        size = len(merged.to_bytes())
        click.echo(cli_text.merge_summary(merged.stats["merge"], output, size), err=True)


@click.command()
@click.argument("source", metavar="OUT.aotm|MODEL", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
@click.option("--verify", is_flag=True, help="Also check every checksum of the constants.")
@click.option("--program", is_flag=True, help="Show the programs' instructions.")
@click.option("--dedup", is_flag=True, help="Show what sharing code and constants has saved.")
@click.option(
    "--fusion", "shows_fusion", is_flag=True, help="Show what became one dispatch, and why."
)
@compile_options
def inspect(
    source: str,
    as_json: bool,
    verify: bool,
    program: bool,
    dedup: bool,
    shows_fusion: bool,
    **options: Any,
) -> None:
    """Show what is in a module file: variants, signatures, executables, segments.

    \b
    Examples:
      aotc inspect model.aotm
      aotc inspect model.aotm --program
      aotc inspect model.aotm --verify --json
      aotc inspect model.aotm --dedup
      aotc inspect model.onnx --dedup --optimize size
      aotc inspect model.onnx --fusion

    With --dedup it may be a MODEL, which is compiled with the options of 'aotc compile'; then
    seconds are shown too, which no module file holds. --fusion takes a MODEL only: it tells of
    each dispatch its ops and bytes, and why each value that it reads is not computed in it.
    """
    from aot.tools.inspection import format_inspection
    from aot.tools.ledger_text import format_dedup

    if shows_fusion:
        _show_fusion(source, as_json, others=verify or program or dedup, options=options)
        return
    if dedup and not is_compiled(source):
        ledger = _ledger(source, **options)
        cli_text.show_facts({"dedup": ledger}, lambda f: format_dedup(f["dedup"]), as_json=as_json)
        return
    refuse_compile_options(options)
    facts = aot.inspect(module_source(source), verify=verify, program=program, dedup=dedup)
    cli_text.show_facts(facts, format_inspection, as_json=as_json)
    if dedup and not as_json:
        cli_text.show_facts(facts["dedup"], lambda f: f"\n{format_dedup(f)}", as_json=False)


def _show_fusion(source: str, as_json: bool, *, others: bool, options: dict[str, Any]) -> None:
    from aot.tools.explain_fusion import format_fusion

    if others:
        raise click.UsageError("--fusion goes with none of --verify, --program and --dedup")
    if is_compiled(source):
        raise click.UsageError(
            "a module file does not hold its model's ops: give --fusion the model"
        )
    facts = aot.explain_fusion(source, **compile_keywords(options))
    cli_text.show_facts(facts, format_fusion, as_json=as_json)


def _ledger(model: str, **options: Any) -> dict[str, Any]:
    """The ledger of a compile, with seconds."""
    from aot.driver.ledger import model_ledger

    module = compile_model(model, **options)
    entries = [e.name for e in module.image.variants[0].entry_points]
    stats = module.stats
    return model_ledger(entries, stats["variants"], stats["rodata"], timed=True)


@click.command("explain-dedup")
@click.argument("source", metavar="MODEL|OUT.aotm", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
@compile_options
def explain_dedup(source: str, as_json: bool, **options: Any) -> None:
    """Show which executables almost became one: the first difference, its cost, the rule behind it.

    MODEL is compiled, with the options of 'aotc compile'; OUT.aotm tells of how it was compiled.

    \b
    Examples:
      aotc explain-dedup model.onnx
      aotc explain-dedup model.onnx --optimize size --target aarch64-android
      aotc explain-dedup model.aotm --json
    """
    from aot.tools.ledger_text import format_missed_merges

    if is_compiled(source):
        refuse_compile_options(options)
        ledger = aot.inspect(source, dedup=True)["dedup"]
    else:
        ledger = _ledger(source, **options)
    cli_text.show_facts(ledger, format_missed_merges, as_json=as_json)
