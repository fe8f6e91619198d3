"""Runs a module that is to be measured, with `aot-run` or the user's command, and reads the times.

Owns how the command is called and what of its answer is believed. Knows nothing of what is
measured.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from aot.base.records import dataclass
from aot.errors import AotError, CompileError
from aot.runtime.runner import find_runner

# what a run may take beyond the time that tuning has left
GRACE_SECONDS = 30.0


class RunnerError(AotError):
    """The runner's command failed, printed something other than times, or took too long."""


class Runner(Protocol):
    """A function that measures the launches of a module."""

    def __call__(
        self, module: Path, options: Sequence[str], runs: int, seconds: float
    ) -> list[float]:
        """Milliseconds of each dispatch in program order, each the least of at least `runs` runs.

        Args:
            options: of `aot-run`: on what to run it, and with which inputs.
            seconds: that are left; a runner may give up a while after them.

        Raises:
            RunnerError: there are no times.
        """


@dataclass(frozen=True)
class CommandRunner:
    """A runner that calls `aot-run`, or a command in its place.

    Attributes:
        command: gets the module's path and options of `aot-run` as further arguments, and prints
            what `aot-run --json --profile` does.
    """

    command: tuple[str, ...]
    grace: float = GRACE_SECONDS

    @staticmethod
    def of(text: str | None) -> CommandRunner:
        """The runner that the option `--tune-runner` names; for None, this machine's `aot-run`.

        Raises:
            CompileError: the text is no command.
            RuntimeFailure: there is no `aot-run`.
        """
        if text is None:
            return CommandRunner((str(find_runner()),))
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise CompileError(f"the tune runner {text!r} is no command: {error}".lower()) from None
        if not words:
            raise CompileError("the tune runner is an empty command")
        return CommandRunner(tuple(words))

    def __call__(
        self, module: Path, options: Sequence[str], runs: int, seconds: float
    ) -> list[float]:
        measured = ["--json", "--profile", "--runs", str(runs)]
        command = [*self.command, str(module), *options, *measured]
        output = self._output(command, seconds + self.grace)
        return _times(output)

    def _output(self, command: Sequence[str], seconds: float) -> str:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=os.name == "posix",
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RunnerError(f"cannot run {command[0]}: {reason}") from None
        try:
            output, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RunnerError(f"{command[0]} took more than {seconds:.0f} s") from None
        finally:
            if process.poll() is None:
                _end(process)
        if process.returncode != 0:
            lines = said.strip().splitlines()
            reason = lines[-1] if lines else f"it ended with {process.returncode}"
            raise RunnerError(f"{command[0]}: {reason}")
        return output


def _end(process: subprocess.Popen[str]) -> None:
    """Kills a process and all its children, which would otherwise outlive a script."""
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)


def _times(output: str) -> list[float]:
    """The least time of each dispatch, from the last line of output, which is the JSON of
    `aot-run`.

    Others' work only makes a machine look slower: of runs that follow each other the least says
    most.
    """
    lines = output.strip().splitlines()
    try:
        launches = json.loads(lines[-1])["profile"]["launches"] if lines else None
        found = [_time(launch) for launch in launches or () if launch["kind"] == "dispatch"]
    except (ValueError, KeyError, TypeError):
        found = []
    if not found:
        said = repr(lines[-1][:60]) if lines else "nothing"
        raise RunnerError(f"expected the JSON of aot-run --profile, got {said}")
    return found


def _time(launch: Any) -> float:
    least = launch["min_ms"]
    if type(least) not in (int, float) or not math.isfinite(least) or least < 0:
        raise ValueError("no time")
    return float(least)
