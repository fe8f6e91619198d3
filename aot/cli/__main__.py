"""Entry point of `python -m aot.cli`."""

from aot.cli.main import entry

entry()
