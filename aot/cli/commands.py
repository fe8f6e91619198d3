"""The group of all commands: which file has each, the sections of its help, and shell completion.

A command's file is imported when the command is used or its help is shown. Knows no option.
"""

from __future__ import annotations

import importlib
import os

import click
from click.shell_completion import get_completion_class, shell_complete

COMPLETION_VARIABLE = "_AOTC_COMPLETE"
"""The variable by which a shell's completion asks the command, in click's own protocol."""
SHELLS = ("bash", "zsh", "fish")
_ARGUMENTS = "aot.arguments"

# The file of each command that is not the main one's.
_FILES = {
    "bench": "aot.cli.bench",
    "build": "aot.cli.build",
    "cache": "aot.cli.build",
    "completion": "aot.cli.commands",
    "devices": "aot.cli.devices",
    "doctor": "aot.cli.devices",
    "embed": "aot.cli.embed",
    "explain-dedup": "aot.cli.inspect",
    "generate": "aot.cli.generate",
    "inspect": "aot.cli.inspect",
    "merge": "aot.cli.inspect",
    "package": "aot.cli.package",
    "quantize": "aot.cli.quantize",
    "report": "aot.cli.report",
    "targets": "aot.cli.build",
    "upgrade": "aot.cli.upgrade",
}
# The first sentence of each command's help, for the list of all without importing them.
_SUMMARIES = {
    "compile": (
        "Compile a MODEL (ONNX, TFLite, GGUF, PyTorch, text IR), or several, to a module file."
    ),
    "run": "Run a module file once and describe its outputs.",
    "verify": (
        "Compare what a compiled model computes with another engine; exit 1 where they disagree."
    ),
    "bench": "Time a module file with the native aot-run, and say where the time goes.",
    "inspect": "Show what is in a module file: variants, signatures, executables, segments.",
    "package": "Package a module file for a project, a device's shell or a board.",
    "generate": "Let a language model in MODULE reply to PROMPT, or to what is on standard input.",
    "embed": "Embed each TEXT, or each line of standard input, by the model in MODULE.",
    "quantize": "Quantise an ONNX model in float32 to 8 or 4 bits, on data of yours.",
    "build": "Build the models x targets x options of a file, and show what became of each.",
    "merge": (
        "Merge module files into one that has an entry point for each and shares what is equal."
    ),
    "upgrade": "Rewrite a module file of an earlier version to the one of now, without its model.",
    "report": "Compare reports that compiles and benchmarks have written.",
    "cache": "Show or clear the cache of compiled code.",
    "targets": "List the targets that come with the compiler, or explain one.",
    "devices": "List the devices of this machine, their limits, and the targets that fit them.",
    "doctor": (
        "Examine this machine: targets, drivers, toolchains, packages, caches, and what is missing."
    ),
    "completion": "Print a shell's completion of commands, options and their values.",
    "explain-dedup": (
        "Show which executables almost became one: the first difference, its cost, the rule "
        "behind it."
    ),
}
SECTIONS = {
    "Every day": ("compile", "run", "verify", "bench", "inspect", "package"),
    "Language models and quantisation": ("generate", "embed", "quantize"),
    "Many models": ("build", "merge", "upgrade", "cache"),
    "Targets and this machine": ("targets", "devices", "doctor", "completion"),
    "Debugging": ("report", "explain-dedup"),
}


class Commands(click.Group):
    """A group whose commands are imported when they are used, in sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keeps the arguments, which reports name, for `command_line`."""
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *_FILES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _FILES and cmd_name not in self.commands:
            module = importlib.import_module(_FILES[cmd_name])
            self.add_command(getattr(module, cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes each section's commands with the whole first sentence of their help."""
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, _SUMMARIES[name]) for name in names])


def command_line() -> tuple[str, ...]:
    """The arguments of the command that is running."""
    found: tuple[str, ...] = click.get_current_context().meta.get(_ARGUMENTS, ())
    return found


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a shell's completion of commands, options and their values.

    \b
    Examples:
      source <(aotc completion bash)            for this session
      aotc completion bash >> ~/.bashrc         for all that follow
      aotc completion zsh > ~/.zfunc/_aotc      with ~/.zfunc in fpath
      aotc completion fish > ~/.config/fish/completions/aotc.fish
    """
    context = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.command, {}, "aotc", COMPLETION_VARIABLE).source())


def complete(group: click.Group) -> int | None:
    """Answers a shell that asks for completion; None where none does. Returns the exit status."""
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if not instruction:
        return None
    return shell_complete(group, {}, "aotc", COMPLETION_VARIABLE, instruction)
