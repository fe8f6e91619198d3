"""Generates what docs/use/cli.md says of commands from the commands themselves."""

from __future__ import annotations

import click

# Where a command is described besides the page itself.
PAGES = {
    "bench": "[benchmarking.md](benchmarking.md)",
    "build": "[below](#building-many-modules)",
    "cache": "[below](#the-cache-of-compiled-code)",
    "devices": "[vulkan.md](vulkan.md)",
    "explain-dedup": "[dedup.md](dedup.md)",
    "embed": "[gguf.md](gguf.md#models-that-embed-texts)",
    "generate": "[generation.md](generation.md)",
    "merge": "[dedup.md](dedup.md)",
    "package": "[packaging.md](packaging.md)",
    "quantize": "[quantised.md](quantised.md)",
    "report compare": "[reports.md](reports.md#comparing-two)",
    "targets": "[add-a-target.md](../internals/add-a-target.md)",
    "verify": "[below](#verifying)",
}


def _commands() -> dict[str, click.Command]:
    """All commands by name, in the order of the help's sections."""
    from aot.cli.commands import SECTIONS
    from aot.cli.main import cli

    context = click.Context(cli, info_name="aotc")
    found = {}
    for names in SECTIONS.values():
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                found |= {f"{name} {own}": c for own, c in command.commands.items()}
            else:
                found[name] = command
    return found


def commands_table() -> str:
    """One row a command: what its help says first, and where it is described."""
    rows = ["| command | what it does | more |", "|---|---|---|"]
    for name, command in _commands().items():
        help = command.get_short_help_str(limit=1000).replace("|", "\\|")
        rows.append(f"| `{name}` | {help} | {PAGES.get(name, '')} |")
    return "\n".join(rows)


def command_options() -> str:
    """A table of the options of each command, without those of a compile."""
    from aot.options import OPTIONS

    parts = []
    for name, command in _commands().items():
        options = [p for p in command.params if isinstance(p, click.Option)]
        takes_compile = set(OPTIONS) <= {o.name for o in options}
        if takes_compile:
            options = [o for o in options if o.name not in OPTIONS]
        usage = " ".join(
            p.make_metavar(click.Context(command))
            for p in command.params
            if isinstance(p, click.Argument)
        )
        lines = [f"### aotc {name}", "", f"`aotc {f'{name} {usage}'.strip()}`"]
        if takes_compile:
            lines += ["", "Takes the options of a compile, above, and these:"]
        if options:
            lines += ["", "| option | meaning |", "|---|---|"]
            lines += [f"| {_flags(o)} | {_meaning(o)} |" for o in options]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _flags(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(click.Command('x')))}"
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{name}{value}`" for name in names).replace("|", "\\|")


def _meaning(option: click.Option) -> str:
    help = " ".join((option.help or "").split()).replace("|", "\\|")
    parts = [help] if help else []
    if option.multiple:
        parts.append("Repeatable.")
    if option.show_default and not option.is_flag:
        parts.append(f"Default: {option.default}.")
    if option.required:
        parts.append("Required.")
    return " ".join(parts)
