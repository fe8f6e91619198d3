"""The rules of a module file's fields (runtime/module_rules.toml): a file that breaks one of them
is refused by the runtime, with and without its driver for GPUs, and by the reader in Python, in the
same words; the file that breaks none is taken by all.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flatbuffers
import pytest

from aot.link.module_schema import FIELDS, RULES, Rule
from tests.support import runtime_api
from tests.support.module_rules import BREAKS, CPU, broken, places_of, whole_module
from tests.support.runtime_modules import fbs, stamp, with_structure
from tests.support.two_readers import reader_failure, reading_for_gpus, runtime_failure

OF_VOCABULARY = (
    "Vocabulary",
    "ChatRole",
    "PrefixState",
)  # a structure of its own: test_vocabulary.py


def test_the_whole_module_is_taken() -> None:
    moved = with_structure(whole_module(), lambda root: None)
    for data in (whole_module(), moved):
        assert reader_failure(data) is None
        assert runtime_failure(data) is None
        with reading_for_gpus():
            assert runtime_failure(data) is None


def test_every_rule_is_broken_here() -> None:
    assert sorted(BREAKS) == sorted(
        r.message for table, rules in RULES.items() if table not in OF_VOCABULARY for r in rules
    )


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        pytest.param(t, r, id=r.message)
        for t, rules in RULES.items()
        if t not in OF_VOCABULARY
        for r in rules
    ],
)
def test_what_breaks_a_rule_is_refused(table: str, rule: Rule) -> None:
    places = places_of(rule, table)
    assert places
    for place, change in itertools.product(places, BREAKS[rule.message]):
        message, data = broken(rule, table, place, change)
        assert reader_failure(data) == message
        with reading_for_gpus():
            assert runtime_failure(data) == message
        # Without a driver for GPUs, what only they do is passed over.
        is_looked_at = rule.sort in ("", "cpu") or (rule.sort == "function" and place[0] == CPU)
        if is_looked_at and table != "Host":
            assert runtime_failure(data) == message


def _walk(table: Any) -> Iterator[Any]:
    """A table of the structure and all those in it."""
    yield table
    for field in FIELDS[type(table).__name__.removesuffix("T")]:
        value = getattr(table, field.name)
        for child in value if isinstance(value, list) else [value]:
            if type(child).__name__.removesuffix("T") in FIELDS:
                yield from _walk(child)


FAULTS = [
    (table, field.name, what)
    for table, fields in FIELDS.items()
    if table not in OF_VOCABULARY
    for field in fields
    for is_there, what in (
        (field.is_required, "a required field is missing"),
        (field.values > 0, "an enum has a value that this version doesn't know"),
    )
    if is_there
]


@pytest.mark.parametrize(("table", "name", "what"), FAULTS)
def test_required_fields_and_enums(table: str, name: str, what: str) -> None:
    """Of each table of the kind, wherever it stands."""
    (field,) = (f for f in FIELDS[table] if f.name == name)

    def tables(root: fbs.ModuleT) -> list[Any]:
        return [t for t in _walk(root) if type(t).__name__ == f"{table}T"]

    counts: list[int] = []
    with_structure(whole_module(), lambda root: counts.append(len(tables(root))))
    assert counts[0] > 0
    for index in range(counts[0]):
        value = field.values if field.values else None
        data = with_structure(
            whole_module(), lambda root, i=index, v=value: setattr(tables(root)[i], name, v)
        )
        found = reader_failure(data)
        assert found is not None and found.startswith(f"the structure is malformed: {table} at ")
        assert found.endswith(what)
        with reading_for_gpus():
            assert runtime_failure(data) == found


def shared_tables(count: int) -> bytes:
    """A few kilobytes whose tables are shared: they would unfold to count ** 4 dims."""
    builder = flatbuffers.Builder(4096)

    def vector(offset: int, length: int) -> int:
        builder.StartVector(4, length, 4)
        for _ in range(length):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def table(field_count: int, fields: dict[int, int], scalars: dict[int, int]) -> int:
        builder.StartObject(field_count)
        for slot, offset in fields.items():
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        for slot, value in scalars.items():
            builder.PrependUint8Slot(slot, value, 0)
        return int(builder.EndObject())

    name = builder.CreateString("x")
    dims = vector(table(4, {}, {}), count)
    tensors = vector(table(3, {0: name, 2: dims}, {}), count)
    program = fbs.ProgramT(code=[27 | 1 << 8] * 2, blocks=[0, 1], executeBlock=1).Pack(builder)
    entry = {0: name, 1: tensors, 2: tensors, 3: program}
    entries = vector(table(5, entry, {}), count)
    variant = {0: name, 6: vector(0, 0), 7: entries}
    variants = vector(table(10, variant, {2: 1, 3: 8}), count)
    rodata = fbs.SegmentT(0, 0, 64, 0).Pack(builder)
    builder.Finish(table(6, {2: variants, 3: rodata}, {}), file_identifier=b"AOTM")
    structure = bytes(builder.Output())
    return stamp(bytes(64) + structure, len(structure))


def test_shared_tables_do_not_multiply() -> None:
    data = shared_tables(200)
    assert len(data) < 5000
    found = reader_failure(data)
    assert found is not None and found.endswith(": tables are shared too often")
    allocator = runtime_api.CountingAllocator()
    assert runtime_api.open_failure(data, allocator=allocator).message == found
    assert not allocator.live


@pytest.mark.parametrize("command", ["inspect", "merge", "package"])
def test_shared_tables_in_every_command(command: str, tmp_path: Path) -> None:
    path = tmp_path / "shared.aotm"
    path.write_bytes(shared_tables(200))
    words = {"inspect": [path], "merge": [path, path, "-o", tmp_path / "o.aotm"]}
    words["package"] = [path, "--format", "static-library", "-o", tmp_path / "o"]
    result = subprocess.run(
        [sys.executable, "-m", "aot.cli.main", command, *map(str, words[command])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "tables are shared too often" in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
