"""The file of tuning records: one line of JSON for each executable, sorted, so that it can be
checked in.

Owns the file's form, what of it is believed, and that several compiles may use it at a time: it is
replaced whole, under a lock where the system has one. A line that isn't understood is left out with
a warning, and gone the next time that the file is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any

from aot.analysis.cost.candidates import WINOGRAD, Choice
from aot.analysis.stages import DIRECT
from aot.backends import sources
from aot.backends.cpu.object_cache import default_folder, write_whole
from aot.base.records import dataclass
from aot.errors import CompileError, TuningWarning
from aot.ir import input_files

FILE_NAME = "tuning.jsonl"
# what decides how fast a choice is, beside the executable and the target
_SOURCES = ("kernels", "backends/cpu", "backends/vulkan")
_MOST_EXTENT = 4096
_KEY_LENGTH = 40
_MOST_WARNINGS = 10  # of damaged lines, a file of which may be of any other kind


@dataclass(frozen=True)
class TuningRecord:
    """The measurements of one executable.

    Attributes:
        target, what: for people: the target's name, and the executable's ops.
        compiler: the state of the compiler.
        base: the plan's choice, which the others were compared with.
        best: the choice to use.
        ratios: what others took, as a part of what `base` did.
        confirmed: the same, of those that were measured again in rounds.
    """

    key: str
    target: str
    what: str
    compiler: str
    base: Choice
    best: Choice
    ratios: Mapping[Choice, float] = field(default_factory=dict)
    confirmed: Mapping[Choice, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The time of the best choice relative to that of the planned choice."""
        return 1.0 if self.best == self.base else self.confirmed.get(self.best, 1.0)

    def line(self) -> str:
        """The record as a line of text, which `parse` reads."""
        record = {
            "key": self.key,
            "target": self.target,
            "what": self.what,
            "compiler": self.compiler,
            "base": _to_json(self.base),
            "best": _to_json(self.best),
            "confirmed": _pairs(self.confirmed),
            "ratios": _pairs(self.ratios),
        }
        return json.dumps(record, separators=(", ", ": "))

    @staticmethod
    def parse(line: str) -> TuningRecord:
        """Parses a line of the tuning file.

        Raises:
            ValueError: it is damaged; the message says how.
        """
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("it is no object")
        texts = [record.get(name) for name in ("key", "target", "what", "compiler")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("key, target, what and compiler must be texts")
        key, target, what, compiler = map(str, texts)
        if len(key) != _KEY_LENGTH or set(key) - set("0123456789abcdef"):
            raise ValueError(f"{key!r} is no key")
        pairs = [record.get(name) for name in ("ratios", "confirmed")]
        if not all(isinstance(found, list) for found in pairs):
            raise ValueError("ratios and confirmed must be lists")
        ratios, confirmed = (dict(map(_ratio, found or ())) for found in pairs)
        base, best = _choice(record.get("base")), _choice(record.get("best"))
        return TuningRecord(key, target, what, compiler, base, best, ratios, confirmed)


class TuningCache:
    """The records of one tuning file.

    Attributes:
        path: None is a cache that has nothing and keeps nothing.
        lines: those that are believed, by key.
    """

    def __init__(self, path: Path | None, *, must_exist: bool = False) -> None:
        """Reads a tuning file; a missing one is empty, unless it `must_exist`.

        Raises:
            CompileError: the file cannot be read.
        """
        self.path = path
        self.lines: dict[str, TuningRecord] = {}
        self._is_writable = True
        if path is None:
            return
        try:
            self.lines = _read(path)
        except FileNotFoundError:
            if must_exist:
                raise CompileError(
                    f"cannot read {path}: no such file; --tune SECONDS makes one"
                ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise CompileError(f"cannot read {path}: {_reason(error)}") from None

    @staticmethod
    def default_path(folder: Path | None) -> Path | None:
        """The path of the file in `folder`, or in the folder of compiled code."""
        folder = folder or default_folder()
        return None if folder is None else folder / FILE_NAME

    def put(self, record: TuningRecord) -> None:
        """Adds a record to the file, which other compiles may have changed meanwhile. If the file
        cannot be written, warns and gives up writing."""
        self.lines[record.key] = record
        if self.path is None or not self._is_writable:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
                lines = dict(_believed(input_files.text(self.path), []))
                lines[record.key] = record
                _write(self.path, lines.values())
        except (OSError, UnicodeDecodeError) as error:
            self._is_writable = False
            _warn(f"what tuning learns is not kept: cannot write {self.path}: {_reason(error)}")


def _read(path: Path) -> dict[str, TuningRecord]:
    damaged: list[tuple[int, str]] = []
    found = dict(_believed(input_files.text(path), damaged))
    for number, reason in damaged[:_MOST_WARNINGS]:
        _warn(f"{path}, line {number} is damaged and left out: {reason}")
    if len(damaged) > _MOST_WARNINGS:
        more = len(damaged) - _MOST_WARNINGS
        _warn(f"{path}: {more} more lines are damaged and left out")
    return found


def _believed(text: str, damaged: list[tuple[int, str]]) -> Iterator[tuple[str, TuningRecord]]:
    """(key, record) of each line that can be parsed; adds (line number, reason) of the others to
    `damaged`."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = TuningRecord.parse(line)
        except (ValueError, RecursionError) as error:
            damaged.append((number, str(error)))
            continue
        yield record.key, record


def _write(path: Path, lines: Iterable[TuningRecord]) -> None:
    ordered = sorted(lines, key=lambda one: (one.target, one.what, one.key))
    text = "".join(f"{one.line()}\n" for one in ordered)
    write_whole(path, text.encode())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A context in which no other compile changes the file.

    The lock is on the file itself, which a writer replaces: who waited for one that has been
    replaced asks for the new one. Without such locks (Windows) a line may be lost, none damaged.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    yield
                    return
        finally:
            os.close(handle)


def _to_json(choice: Choice) -> dict[str, Any]:
    tiles = [list(tile) for tile in choice.tiles]
    return {"tiles": tiles, "algorithm": choice.algorithm} if choice.algorithm else {"tiles": tiles}


def _pairs(ratios: Mapping[Choice, float]) -> list[list[Any]]:
    found = sorted(ratios.items(), key=lambda item: str(item[0]))
    return [[_to_json(choice), round(ratio, 4)] for choice, ratio in found]


def _choice(value: object) -> Choice:
    if not isinstance(value, dict) or set(value) - {"tiles", "algorithm"}:
        raise ValueError(f"{value!r} is no choice")
    tiles, algorithm = value.get("tiles"), value.get("algorithm", "")
    if algorithm not in ("", DIRECT, WINOGRAD):
        raise ValueError(f"{algorithm!r} is no algorithm")
    if not isinstance(tiles, list) or not all(map(_is_tile, tiles)):
        raise ValueError(f"{tiles!r} are no tiles")
    return Choice(tuple((rows, columns) for rows, columns in tiles), algorithm)


def _is_tile(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(n) is int and 1 <= n <= _MOST_EXTENT for n in value)
    )


def _ratio(value: object) -> tuple[Choice, float]:
    if not isinstance(value, list) or len(value) != 2 or type(value[1]) not in (int, float):
        raise ValueError(f"{value!r} is no choice with its ratio")
    return _choice(value[0]), float(value[1])


@lru_cache(maxsize=1)
def compiler_id() -> str:
    """A hash of the parts of the compiler that turn choices into code; the same on all machines
    with the same version."""
    return sources.digest(*_SOURCES).hex()[:16]


def _warn(message: str) -> None:
    warnings.warn(message, TuningWarning, stacklevel=2)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text).lower()
