"""`aotc package`: its options, and what it prints of the result."""

from __future__ import annotations

import json

import click

from aot.cli.compile import module_path, shown_progress
from aot.cli.text import table


@click.command(name="package")
@click.argument("module", type=click.Path())
@click.option(
    "--format",
    "format_",
    type=click.Choice(["source", "executable", "static-library", "wasm"]),
    required=True,
    help="source: a folder for CMake; executable: one program; static-library: an archive; "
    "wasm: for browsers and Node.",
)
@click.option("-o", "--output", required=True, metavar="DIR", help="The folder to write to.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="A variant to keep; repeatable. Default: all.",
)
@click.option(
    "--drop",
    multiple=True,
    type=click.Choice(["cpu", "vulkan"]),
    help="Leave out all variants for a device; repeatable.",
)
@click.option(
    "--name", metavar="NAME", help="Of files, and of a library's symbols. Default: the module's."
)
@click.option(
    "--cc",
    "compiler",
    metavar="COMMAND",
    help="The C compiler for an executable or wasm, with options. Default: the NDK's for Android, "
    "else Zig's from the extra 'toolchain'.",
)
@click.option(
    "--max-arena",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="Fail where a static library needs more RAM.",
)
@click.option(
    "--max-flash",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="Fail where a static library's code and data take more.",
)
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def package(
    module: str,
    format_: str,
    output: str,
    targets: tuple[str, ...],
    drop: tuple[str, ...],
    name: str | None,
    compiler: str | None,
    max_arena: int | None,
    max_flash: int | None,
    as_json: bool,
) -> None:
    """Package a module file for a project, a device's shell or a board.

    \b
    Examples:
      aotc package model.aotm --format source -o third_party/model
      aotc package model.aotm --format executable -o out
      aotc package model.aotm --format executable --cc aarch64-linux-gnu-gcc -o out
      aotc package model.aotm --format static-library --max-arena 65536 -o out
      aotc package model.aotm --format wasm -o out
      aotc compile model.onnx -o - | aotc package - --format source -o out

    docs/use/packaging.md says what is in each and how to build with it.
    """
    from aot.packaging import PackageOptions
    from aot.packaging import package as make_package
    from aot.packaging.executable import ExecutableOptions
    from aot.packaging.static_library import LibraryLimits

    if compiler is not None and format_ not in ("executable", "wasm"):
        raise click.UsageError("--cc goes with --format executable and wasm only")
    if (max_arena is not None or max_flash is not None) and format_ != "static-library":
        raise click.UsageError("--max-arena and --max-flash go with --format static-library only")
    options = PackageOptions(
        targets, name, ExecutableOptions(compiler), LibraryLimits(max_arena, max_flash), drop
    )
    with module_path(module) as path, shown_progress(f"packaging {module}"):
        made = make_package(path, format_, output, options)
    if as_json:
        facts = {"folder": str(made.folder), "files": dict(made.files), **made.facts}
        click.echo(json.dumps(facts, indent=2))
        return
    rows = [[key.replace("_", " "), f"{value:,}"] for key, value in made.facts.items()]
    click.echo(f"{made.folder}: {len(made.files)} files")
    click.echo(table(("what", "bytes"), rows, right="bytes"))
