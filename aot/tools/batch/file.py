"""Reads batch files: models times targets times options, as typed records.

Owns the file's schema and every message about a wrong one: file, line, key and what is allowed.
Reads nothing of the models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.ir import array_files, input_files
from aot.ir.bounds import parse_shape, parse_wanted
from aot.options import OPTIONS, CompileOptions
from aot.target.toml import table_of

KEYS = tuple(option.name for option in OPTIONS.values() if option.in_batch)
_TOP = ("output", "models", "targets", "options", "defaults", "skip")
_NAME = re.compile(r"[\w.+-]+")
_MOST_CELLS = 10_000  # before any are skipped: a small file's product is terabytes of cells


@dataclass(frozen=True, eq=False)
class Axis:
    """One value along an axis of the batch.

    Attributes:
        name: part of the output's name, and of the table; "" for options that are not named.
        value: a model's path; names or paths of targets; nothing for options.
        options: arguments of `aot.compile` that this value brings.
    """

    name: str
    value: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Cell:
    """One module to build: a model, a target and options.

    Attributes:
        options: of the defaults, then the model's, then the option set's.
        output: the file to write.
    """

    model: Axis
    target: Axis
    option: Axis
    options: Mapping[str, Any]
    output: Path

    @property
    def label(self) -> str:
        return " ".join(part.name for part in (self.model, self.target, self.option) if part.name)


@dataclass(frozen=True)
class Batch:
    """The contents of a batch file.

    Attributes:
        folder: where modules and the record of what they were built from go.
    """

    file: Path
    folder: Path
    cells: tuple[Cell, ...]


def read_batch(path: Path) -> Batch:
    """The batch that a TOML file describes; paths in it are relative to the file.

    Raises:
        CompileError: it cannot be read, or is wrong: names file, line, key and what is allowed.
    """
    try:
        text = input_files.text(path)
    except OSError as error:
        raise CompileError(f"cannot read {path}: {(error.strerror or '').lower()}") from None
    except UnicodeDecodeError:
        raise CompileError(f"{path}: a batch file must be utf-8") from None
    return parse_batch(text, path)


def parse_batch(text: str, path: Path) -> Batch:
    """The batch that the TOML `text` of the file `path` describes."""
    return _Reader(text, path).batch(table_of(text, str(path)))


class _Reader:
    """Converts a parsed table to a Batch; messages name lines of the text."""

    def __init__(self, text: str, path: Path) -> None:
        self.lines = text.splitlines()
        self.path = path

    def fail(self, key: str, message: str, table: str = "", number: int = 0) -> CompileError:
        """An error that names the line of `key` in the `number`-th `[[table]]`, or at the file's
        top level."""
        start, end = self.part(table, number)
        pattern = re.compile(rf"(^|[{{,])\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[\]=.]")
        found = (n for n in range(start, end) if pattern.search(self.lines[n]))
        line = next(found, start if table else None)
        place = str(self.path) if line is None else f"{self.path}:{line + 1}"
        return CompileError(f"{place}: {message}")

    def part(self, table: str, number: int) -> tuple[int, int]:
        """(first, end) line of the `number`-th table with a name; all lines if the table is written
        inline.
        """
        if not table:
            return 0, len(self.lines)
        head = re.compile(rf"^\s*\[+\s*{re.escape(table)}\s*\]+")
        starts = [n for n, line in enumerate(self.lines) if head.match(line)]
        if number >= len(starts):  # written in line
            return 0, len(self.lines)
        start = starts[number]
        heads = (n for n in range(start + 1, len(self.lines)) if re.match(r"\s*\[", self.lines[n]))
        return start, next(heads, len(self.lines))

    def batch(self, table: Mapping[str, Any]) -> Batch:
        for key in table:
            if key not in _TOP:
                raise self.fail(key, f"unknown key {key!r}: a batch has {', '.join(_TOP)}")
        for key in ("models", "targets"):
            if not table.get(key) or not isinstance(table[key], list):
                raise self.fail(key, f"{key} is missing: a batch needs a list of {key}")
        folder = table.get("output", "build")
        if not isinstance(folder, str) or not folder:
            raise self.fail("output", f"output is {folder!r}, expected a folder's path")
        models = [self.model(n, m) for n, m in enumerate(table["models"])]
        targets = [self.target(t) for t in table["targets"]]
        options = [self.option(n, o) for n, o in enumerate(self.tables(table, "options"))]
        defaults = table.get("defaults", {})
        if not isinstance(defaults, dict):
            raise self.fail("defaults", f"defaults is {defaults!r}, expected a table")
        self.check_options(defaults, "defaults", 0)
        axes = (models, targets, options or [Axis("")])
        count = len(models) * len(targets) * len(axes[2])
        if count > _MOST_CELLS:
            raise self.fail(
                "models",
                f"{count} combinations of models, targets and options, expected at most "
                f"{_MOST_CELLS}: split the batch",
            )
        for key, axis in zip(("models", "targets", "options"), axes, strict=True):
            self.check_names(key, axis)
        root = self.path.parent / folder
        skipped = self.skips(table, axes)
        cells = [
            self.cell(root, model, target, option, defaults)
            for model in axes[0]
            for target in axes[1]
            for option in axes[2]
            if not any(_matches(rule, model, target, option) for rule in skipped)
        ]
        if not cells:
            raise self.fail("skip", "skip leaves nothing to build")
        return Batch(self.path, root, tuple(cells))

    def cell(
        self, root: Path, model: Axis, target: Axis, option: Axis, defaults: Mapping[str, Any]
    ) -> Cell:
        name = "-".join(part.name for part in (model, target, option) if part.name)
        options = {**defaults, **model.options, **option.options}
        return Cell(model, target, option, options, root / f"{name}.aotm")

    def tables(self, table: Mapping[str, Any], key: str) -> Sequence[Any]:
        value = table.get(key, [])
        if not isinstance(value, list):
            raise self.fail(key, f"{key} is {value!r}, expected a list of tables")
        return value

    def model(self, number: int, value: Any) -> Axis:
        if isinstance(value, str):
            value = {"path": value}
        if not isinstance(value, dict):
            raise self.fail("models", f"a model is {value!r}, expected a path or a table")
        path = value.get("path")
        if not isinstance(path, str) or not path:
            raise self.fail("path", "a model needs its path", "models", number)
        options = {k: v for k, v in value.items() if k not in ("name", "path")}
        self.check_options(options, "models", number, also=("name", "path"))
        name = self.name(value.get("name", Path(path).stem), "models", number)
        return Axis(name, (str(self.path.parent / path),), self.arrays(options))

    def target(self, value: Any) -> Axis:
        """The axis entry of a target: a name, a list of names for one module, or a table that names
        such a list.
        """
        name: Any = None
        if isinstance(value, dict):
            for key in value:
                if key not in ("name", "targets"):
                    raise self.fail(key, f"unknown key {key!r}: a target has name, targets")
            name, value = value.get("name"), value.get("targets")
        listed = [value] if isinstance(value, str) else value
        if (
            not isinstance(listed, list)
            or not listed
            or not all(isinstance(t, str) and t for t in listed)
        ):
            raise self.fail(
                "targets", f"a target is {value!r}, expected a name, a path, or a list of them"
            )
        found = tuple(self.target_path(t) for t in listed)
        return Axis(
            self.name(
                name or "+".join(Path(t).stem if t.endswith(".toml") else t for t in listed),
                "targets",
                0,
            ),
            found,
        )

    def target_path(self, text: str) -> str:
        is_path = text.endswith(".toml") or "/" in text
        return str(self.path.parent / text) if is_path else text

    def option(self, number: int, value: Any) -> Axis:
        if not isinstance(value, dict):
            raise self.fail("options", f"options has {value!r}, expected tables")
        options = {k: v for k, v in value.items() if k != "name"}
        self.check_options(options, "options", number, also=("name",))
        if "name" not in value:
            raise self.fail("name", "a set of options needs a name", "options", number)
        return Axis(self.name(value["name"], "options", number), (), self.arrays(options))

    def name(self, value: Any, table: str, number: int) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise self.fail(
                "name",
                f"name is {value!r}, expected letters, digits and . _ + - as in a file's name",
                table,
                number,
            )
        return value

    def check_names(self, key: str, axis: Sequence[Axis]) -> None:
        names = [a.name for a in axis]
        for name in names:
            if names.count(name) > 1:
                raise self.fail(key, f"{key} has {name!r} twice: give one of them another name")

    def check_options(
        self, options: Mapping[str, Any], table: str, number: int, also: tuple[str, ...] = ()
    ) -> None:
        for key in options:
            if key not in KEYS:
                allowed = ", ".join((*also, *KEYS))
                message = f"unknown key {key!r}: {table} has {allowed}"
                raise self.fail(key, message, table, number)
            if OPTIONS[key].kind.is_table and not isinstance(options[key], dict):
                message = f"{key} is {options[key]!r}, expected a table by name"
                raise self.fail(key, message, table, number)
            try:
                CompileOptions(**self.arrays({key: options[key]}))
            except CompileError as error:
                raise self.fail(key, str(error), table, number) from None

    def arrays(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options in the form that `aot.compile` takes: files of arrays are read, pairs become
        tuples."""
        made = dict(options)
        if isinstance(made.get("input_shapes"), dict):
            made["input_shapes"] = {k: _dims(v) for k, v in made["input_shapes"].items()}
        if isinstance(made.get("input_values"), dict):
            made["input_values"] = {k: self.array(v) for k, v in made["input_values"].items()}
        if isinstance(made.get("states"), dict):
            made["states"] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in made["states"].items()
            }
        return made

    def array(self, value: Any) -> Any:
        import numpy as np

        if not isinstance(value, str):
            with suppress(ValueError):  # of lists of unequal lengths
                if np.asarray(value).dtype.kind in "biuf":
                    return value
            expected = "a number, a list of them, or a .npy file"
            raise CompileError(f"input_values: {value!r} is not {expected}")
        return array_files.array(self.path.parent / value, "input_values: ")

    def skips(self, table: Mapping[str, Any], axes: Sequence[Sequence[Axis]]) -> list[Any]:
        rules = self.tables(table, "skip")
        known = dict(zip(("model", "target", "option"), axes, strict=True))
        for number, rule in enumerate(rules):
            if not isinstance(rule, dict) or not rule:
                raise self.fail("skip", f"skip has {rule!r}, expected tables")
            for key, value in rule.items():
                if key not in known:
                    allowed = ", ".join(known)
                    message = f"unknown key {key!r}: skip has {allowed}"
                    raise self.fail(key, message, "skip", number)
                names = [a.name for a in known[key]]
                if value not in names:
                    raise self.fail(
                        key, f"{key} is {value!r}, expected one of {', '.join(names)}",
                        "skip", number,
                    )  # fmt: skip
        return list(rules)


def _dims(value: Any) -> tuple[Any, ...]:
    """A shape in the command line's syntax, such as `1x3xHx224`, or as a list."""
    try:
        if isinstance(value, str):
            return parse_shape(value)
        if isinstance(value, list):
            for item in value:
                parse_wanted(item)
            return tuple(value)
    except ValueError as error:
        message = f"input_shapes: {value!r} is not a shape such as 1x3xHx224: {error}"
        raise CompileError(message) from None
    raise CompileError(f"input_shapes: {value!r} is not a shape such as 1x3xHx224")


def _matches(rule: Mapping[str, str], model: Axis, target: Axis, option: Axis) -> bool:
    mine = {"model": model.name, "target": target.name, "option": option.name}
    return all(mine[key] == value for key, value in rule.items())
