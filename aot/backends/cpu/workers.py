"""Worker processes that run LLVM: requests in, objects out, and no process left behind.

Processes, because llvmlite holds one lock around all of LLVM. Each runs `llvm.py` as a script, so
that it needs neither a fork of this process nor its imports. Owns their lives: whatever ends the
parent or its `with` block ends them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import IO, NamedTuple

from aot.backends.cpu import llvm
from aot.errors import AotError

_SCRIPT = Path(llvm.__file__)


class CrashedError(Exception):
    """A worker ended while it compiled an object; the message is LLVM's last one."""


class UnavailableError(AotError):
    """No worker can be started here, so that the caller must do without."""


class _Task(NamedTuple):
    request: bytes
    result: Future[bytes]


class Workers:
    """Up to `limit` worker processes that compile objects; a context manager.

    Thread safety: `submit` and `start` are called by one thread.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._is_used = False

    @property
    def count(self) -> int:
        """The number of started processes."""
        return len(self._processes)

    def start(self) -> bool:
        """Starts one more process; returns whether the limit allowed it.

        Raises:
            UnavailableError: the first one cannot be started.
        """
        if self.count == self._limit:
            return False
        command = _command()
        if command is None:
            raise UnavailableError("this python cannot start another")
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - its thread closes it
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            errors.close()
            if self._processes:
                self._limit = self.count
                return False
            raise UnavailableError(str(error.strerror)) from error
        thread = threading.Thread(
            target=_serve_tasks, args=(process, errors, self._tasks), daemon=True
        )
        self._processes.append(process)
        self._threads.append(thread)
        thread.start()
        return True

    def submit(self, text: str, machine: llvm.Machine, function: str) -> Future[bytes]:
        """A future object; its exception may be llvm.RejectedError, CrashedError or
        UnavailableError."""
        self._is_used = True
        task = _Task(llvm.request(text, machine, function), Future())
        self._tasks.put(task)
        return task.result

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Ends all processes, at once after an exception or if they were never used."""
        if kind is not None or not self._is_used:
            for process in self._processes:
                with contextlib.suppress(OSError):
                    process.kill()
        for _process in self._processes:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()


def _command() -> list[str] | None:
    found = importlib.util.find_spec("llvmlite")
    if not sys.executable or not _SCRIPT.is_file() or found is None or found.origin is None:
        return None
    # Isolated and without `site`: a worker must not depend on the user's folder and settings.
    return [sys.executable, "-I", "-S", str(_SCRIPT), str(Path(found.origin).parent.parent)]


def _serve_tasks(
    process: subprocess.Popen[bytes], errors: IO[bytes], tasks: SimpleQueue[_Task | None]
) -> None:
    """The thread of one process: gives it one task at a time until there are no more, or it
    ends."""
    assert process.stdin is not None and process.stdout is not None
    is_ready = False
    failure: Exception | None = None
    try:
        while (task := tasks.get()) is not None:
            if failure is not None:
                task.result.set_exception(failure)
                continue
            with contextlib.suppress(OSError):
                is_ready = is_ready or llvm.receive(process.stdout) is not None
            answer = None
            if is_ready:
                with contextlib.suppress(OSError):
                    llvm.send(process.stdin, llvm.REQUEST, task.request)
                    answer = llvm.receive(process.stdout)
            if answer is None:
                failure = _end_of(process, errors, is_ready)
                task.result.set_exception(failure)
            elif answer[0] == llvm.REJECTED:
                task.result.set_exception(llvm.RejectedError(answer[1].decode()))
            else:
                task.result.set_result(answer[1])
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        process.wait()
        errors.close()


def _end_of(process: subprocess.Popen[bytes], errors: IO[bytes], is_ready: bool) -> Exception:
    """The reason why a process ended without an answer."""
    status = process.wait()
    if not is_ready:
        return UnavailableError("a worker ended before it was ready")
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip().splitlines()
    reason = signal.strsignal(-status) if status < 0 else f"exit status {status}"
    return CrashedError("; ".join([f"llvm ended by: {reason}", *said[:1]]))
