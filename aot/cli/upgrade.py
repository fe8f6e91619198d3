"""`aotc upgrade`: its options, and what it prints.

Owns no rewriting: that is `aot.tools.upgrading`'s.
"""

from __future__ import annotations

from pathlib import Path

import click

from aot.cli import text as cli_text


@click.command()
@click.argument("module", metavar="OLD.aotm", type=click.Path())
@click.option(
    "-o", "--output", required=True, metavar="NEW.aotm", help="The file to write ('-': stdout)."
)
def upgrade(module: str, output: str) -> None:
    """Rewrite a module file of an earlier version to the one of now, without its model.

    \b
    Example:
      aotc upgrade old.aotm -o new.aotm

    What can be told from the file is rewritten: patterns by which a language model cuts text, and
    chat templates. Code, shaders and constants stay as they were compiled. A file that is as this
    version writes it is copied. A file that can't be rewritten is refused: compile its model again.
    """
    from aot.tools.upgrading import upgrade as upgrade_file

    cli_text.check_output(output, None)
    if Path(output).exists() and Path(module).exists() and Path(output).samefile(module):
        raise click.UsageError("the output is the module itself")
    made, changes = upgrade_file(module)
    cli_text.write_module(made, output)
    for change in changes or ["nothing was to be rewritten"]:
        click.echo(change, err=True)
