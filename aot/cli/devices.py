"""`aotc devices` and `aotc doctor`: what this machine can run modules on, and what it lacks.

Text and options only: what is there is found by `aot.tools.devices` and `aot.cli.findings`.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from aot.cli import text as cli_text


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def devices(as_json: bool) -> None:
    """List the devices of this machine, their limits, and the targets that fit them.

    Vulkan devices are asked through the package vulkan: pip install 'aotc[vulkan]'.
    """
    from aot.tools.devices import find_devices

    found, why_not = find_devices()
    if as_json:
        click.echo(json.dumps([asdict(d) for d in found], indent=2))
    else:
        click.echo(cli_text.devices_text(found))
    if why_not:
        click.echo(f"aotc: no GPUs are listed: {why_not}", err=True)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts; keys are stable.")
def doctor(as_json: bool) -> None:
    """Examine this machine: targets, drivers, toolchains, packages, caches, and what is missing.

    \b
    Examples:
      aotc doctor
      aotc doctor --json      to attach to a report

    What is missing is needed by some commands only, which it says. Nothing is installed or changed.
    """
    from aot.cli.findings import examine

    findings = examine()
    if as_json:
        click.echo(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        click.echo(cli_text.findings_text(findings))
