"""`aotc devices`: what this machine can run modules on.

Text and options only: what is there is `aot.runtime.devices`'.
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
    from aot.tools.devices import list_devices

    found = list_devices()
    if as_json:
        click.echo(json.dumps([asdict(d) for d in found], indent=2))
    else:
        click.echo(cli_text.devices_text(found))
