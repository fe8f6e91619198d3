"""Builds a batch of models, targets and options: many independent compiles at once.

Owns what a module counts as built from, the record that makes a build resumable, and how cells are
handed to an executor. A cell that fails is a row of the result; the others go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from aot.backends import sources
from aot.base.records import dataclass
from aot.errors import AotError, CompileError, InternalError, UnsupportedError
from aot.frontends import registry
from aot.ir import input_files
from aot.link.files import write_atomically
from aot.options import Progress, no_progress
from aot.target.selection import load
from aot.tools.batch.file import Batch, Cell, read_batch
from aot.version import __version__

RECORD = ".aotc-build.json"
BUILT, CURRENT, FAILED = "built", "up to date", "failed"


@dataclass(frozen=True)
class Row:
    """The result of building one cell.

    Attributes:
        status: BUILT, CURRENT or FAILED.
        bytes: the module's size; 0 where there is none.
        seconds: that compiling took; 0 where nothing was compiled.
        error: one line, of what failed.
    """

    cell: Cell
    status: str
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Task:
    """A cell in the form in which it is sent to another process or machine.

    Attributes:
        model: a path here, or the model's bytes for elsewhere.
        targets: names, or (name, text) of target files.
        output: the file to write; None where the bytes come back.
    """

    model: str | bytes
    targets: tuple[str | tuple[str, str], ...]
    options: Mapping[str, Any]
    output: str | None
    cache_dir: str | None = None
    jobs: int = 1


@dataclass(frozen=True)
class Made:
    """The result of one compile task.

    Attributes:
        data: the module, where the task names no file.
        digest: SHA-256 of the module, in hex.
    """

    digest: str = ""
    size: int = 0
    seconds: float = 0.0
    data: bytes = b""
    error: str = ""


def build(
    batch: Batch | str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    jobs: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress = no_progress,
) -> list[Row]:
    """Builds every cell whose module is not up to date; the rows are in the batch's order.

    Args:
        executor: runs `run_task`, as any of `concurrent.futures`' kind does: Dask's
            `client.get_executor()` for one. It gets models and returns modules as bytes, so its
            workers need no common files. Without it, processes of this machine.
        jobs: processes of this machine; 0 is one for each processor.
        cache_dir: the cache of compiled code, on each worker's machine.
        progress: called with "build", cells done and cells in all.

    Raises:
        CompileError: the batch is wrong, or its folder cannot be written.
    """
    asked = batch if isinstance(batch, Batch) else read_batch(Path(batch))
    try:
        asked.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CompileError(f"cannot make {asked.folder}: {reason}") from None
    record = _Record(asked.folder)
    progress("build", 0, len(asked.cells))
    rows: dict[Cell, Row] = {}
    keys: dict[Cell, str] = {}
    for cell in asked.cells:
        try:
            keys[cell] = key_of(cell)
        except AotError as error:
            rows[cell] = Row(cell, FAILED, error=_one_line(error))
            continue
        size = record.current(cell, keys[cell])
        if size is not None:
            rows[cell] = Row(cell, CURRENT, size)
    left = [cell for cell in asked.cells if cell not in rows]
    cache = None if cache_dir is None else os.fspath(cache_dir)
    run = _remotely(left, executor, cache) if executor else _locally(left, _count(jobs), cache)
    with contextlib.closing(run) as results:
        for cell, made in results:
            rows[cell] = _finish(cell, keys[cell], made, record)
            progress("build", len(rows), len(asked.cells))
    return [rows[cell] for cell in asked.cells]


def _finish(cell: Cell, key: str, made: Made, record: _Record) -> Row:
    if made.error:
        return Row(cell, FAILED, seconds=made.seconds, error=made.error)
    try:
        if made.data:
            write_atomically(cell.output, [made.data])
        record.add(cell, key, made)
    except CompileError as error:
        return Row(cell, FAILED, seconds=made.seconds, error=_one_line(error))
    return Row(cell, BUILT, made.size, made.seconds)


# What a module is built from.


def key_of(cell: Cell) -> str:
    """A hash of everything that a cell's module depends on: model, targets, options and compiler.

    Raises:
        CompileError: the model or a target cannot be read.
    """
    digest = hashlib.sha256(_compiler_id())
    for path in _model_files(cell.model.value[0]):
        digest.update(b"model" + _file_digest(path))
    for name in cell.target.value:
        digest.update(repr(replace(load(name), file="")).encode())
    digest.update(_canonical(cell.options).encode())
    return digest.hexdigest()


def _model_files(path: str) -> list[Path]:
    """The model's file, and the files next to it that hold its tensors."""
    try:
        names = registry.find(path).files(Path(path))
    except OSError as error:
        raise CompileError(f"cannot read {path}: {(error.strerror or '').lower()}") from None
    return [Path(path), *(Path(path).parent / name for name in names)]


def _file_digest(path: Path) -> bytes:
    try:
        with input_files.opened(path) as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise CompileError(f"cannot read {path}: {(error.strerror or '').lower()}") from None


def _canonical(value: Any) -> str:
    """Options as text, equal for equal options."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k!r}:{_canonical(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if hasattr(value, "tobytes"):  # an array
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)


@lru_cache(maxsize=1)
def _compiler_id() -> bytes:
    """A content hash of this compiler."""
    from aot.backends.cpu.codegen import compiler_id

    return hashlib.sha256(compiler_id() + sources.digest(".")).digest()


@dataclass
class _Record:
    """The record of what a folder's modules were built from: a file in the folder, rewritten at
    each build.
    """

    folder: Path
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((self.folder / RECORD).read_bytes())
            if isinstance(found, dict):
                self.known = {k: v for k, v in found.items() if isinstance(v, dict)}

    def current(self, cell: Cell, key: str) -> int | None:
        """The size of a cell's module if the file is unchanged and was built with `key`; else
        None."""
        entry = self.known.get(cell.output.name, {})
        if entry.get("key") != key:
            return None
        with contextlib.suppress(CompileError, OSError):
            if _file_digest(cell.output).hex() == entry.get("sha256"):
                return cell.output.stat().st_size
        return None

    def add(self, cell: Cell, key: str, made: Made) -> None:
        self.known[cell.output.name] = {"key": key, "sha256": made.digest}
        text = json.dumps(self.known, indent=1, sort_keys=True) + "\n"
        write_atomically(self.folder / RECORD, [text.encode()])


# Running tasks.


def run_task(task: Task) -> Made:
    """Compiles one cell, in any process; an error becomes part of the result."""
    from aot.api import compile

    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        targets = [_target_file(Path(folder), t) for t in task.targets]
        try:
            module = compile(
                task.model,
                targets=targets,
                cache_dir=task.cache_dir,
                jobs=task.jobs,
                **task.options,
            )
            data = module.to_bytes()
            if task.output is not None:
                module.save(task.output)
        except Exception as error:
            return Made(seconds=time.perf_counter() - started, error=_one_line(error))
    digest = hashlib.sha256(data).hexdigest()
    seconds = time.perf_counter() - started
    return Made(digest, len(data), seconds, data if task.output is None else b"")


def _target_file(folder: Path, target: str | tuple[str, str]) -> str:
    if isinstance(target, str):
        return target
    name, text = target
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _one_line(error: BaseException) -> str:
    if isinstance(error, UnsupportedError):
        lines = str(error).splitlines()
        return f"{lines[0]} {'; '.join(line.strip() for line in lines[1:])}"
    text = " ".join(str(error).split())
    if isinstance(error, AotError) and not isinstance(error, InternalError):
        return text
    kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
    return f"internal error: {kind}{text}"


def _task(cell: Cell, model: str | bytes, cache_dir: str | None, jobs: int) -> Task:
    """The task of a cell. Targets are resolved on this machine, as "host" and paths of files may
    differ on another."""
    targets: list[str | tuple[str, str]] = []
    for name in cell.target.value:
        target = load(name)
        text = Path(target.file).read_text(encoding="utf-8") if target.file else ""
        targets.append((target.name, text) if text else target.name)
    output = str(cell.output) if isinstance(model, str) else None
    return Task(model, tuple(targets), cell.options, output, cache_dir, jobs)


Results = Generator[tuple[Cell, Made], None, None]


def _remotely(cells: list[Cell], executor: Executor, cache_dir: str | None) -> Results:
    models: dict[str, bytes] = {}

    def submit(cell: Cell) -> Future[Made]:
        path = cell.model.value[0]
        if path not in models:
            models[path] = registry.find(path).portable(Path(path))
        return executor.submit(run_task, _task(cell, models[path], cache_dir, 0))

    yield from _completed(cells, submit)


def _locally(cells: list[Cell], count: int, cache_dir: str | None) -> Results:
    if count == 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, run_task(_task(cell, cell.model.value[0], cache_dir, count))
        return
    broken: list[Cell] = []
    for cell, made in _in_processes(cells, min(count, len(cells)), cache_dir):
        if made is None:
            broken.append(cell)
        else:
            yield cell, made
    # A process that was killed takes what the others were about with it: each for itself then.
    for cell in broken:
        for _, made in _in_processes([cell], 1, cache_dir):
            yield cell, made or Made(error="its process was ended from outside, by lack of memory?")


def _in_processes(
    cells: list[Cell], count: int, cache_dir: str | None
) -> Iterator[tuple[Cell, Made | None]]:
    """(cell, result) of each cell, built in a pool of processes; None as result if a process of the
    pool was killed."""
    context = multiprocessing.get_context("spawn")  # a fork would take locks and threads along
    pool = ProcessPoolExecutor(count, context, initializer=_await_termination)

    def submit(cell: Cell) -> Future[Made]:
        task = _task(cell, cell.model.value[0], cache_dir, 1)
        return pool.submit(_run_or_end, run_task, task)

    try:
        yield from _completed(cells, submit)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _await_termination() -> None:
    """Sets a worker's signal handlers: Ctrl-C is left to the parent, and a termination raises
    SystemExit, so that partly written files are removed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(signum: int, frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


def _run_or_end(run: Callable[[Task], Made], task: Task) -> Made:
    """Runs a task, and ends the process on a SystemExit, which the executor would ignore."""
    try:
        return run(task)
    except SystemExit as exit_:
        os._exit(int(exit_.code or 1))


def _completed(
    cells: Iterable[Cell], submit: Callable[[Cell], Future[Made]]
) -> Iterator[tuple[Cell, Any]]:
    futures: dict[Future[Made], Cell] = {}
    for cell in cells:
        try:
            futures[submit(cell)] = cell
        except AotError as error:
            yield cell, Made(error=_one_line(error))
        except BrokenProcessPool:
            yield cell, None
    for future in as_completed(futures):
        cell = futures[future]
        try:
            yield cell, future.result()
        except BrokenProcessPool:
            yield cell, None
        except Exception as error:  # the executor's own: a worker lost, a result not sent
            yield cell, Made(error=_one_line(error))


def _count(jobs: int) -> int:
    from aot.backends.cpu.codegen import processors

    return jobs or processors()


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor on the Dask cluster whose scheduler is at `address`.

    Raises:
        CompileError: Dask is not installed, there is no such scheduler, it has no workers, or one
            of them has not this `aotc`.
    """
    try:
        distributed: Any = importlib.import_module("distributed")  # untyped in some releases
    except ImportError:
        raise CompileError(
            "--scheduler needs the package distributed: pip install 'aotc[dask]'"
        ) from None
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CompileError(f"cannot reach a scheduler at {address}: {reason}") from error
    with client:
        _check_workers(client, address)
        yield client.get_executor()


def _check_workers(client: Any, address: str) -> None:
    """Checks that workers exist and have this version of the compiler; without them, a build would
    wait forever."""
    if not client.nthreads():
        raise CompileError(
            f"the scheduler at {address} has no workers: start some with dask worker {address}"
        )

    def found() -> bytes:  # sent by value, as it has no module: it runs where there is no `aot` too
        from aot.backends.sources import digest

        return digest(".")

    for worker, answer in client.run(found, on_error="return").items():
        if isinstance(answer, Exception):
            raise CompileError(
                f"the worker {worker} cannot load aotc: {' '.join(str(answer).split())}"
            )
        if answer != sources.digest("."):
            raise CompileError(
                f"the worker {worker} has another aotc than this one, version {__version__}: "
                "install the same there, and start it again"
            )
