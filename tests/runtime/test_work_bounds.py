"""Small files with numbers for endless work: a status, or what the file is worth, at once.

What bounds each loop over a number from a file stands in docs/internals/fuzzing.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.errors import RuntimeFailure
from aot.link import module_fbs as fbs
from aot.link.module import module_bytes
from aot.link.reader import read_module
from aot.link.template_code import HEADER_WORDS
from aot.text.vocabulary import ALPHABET, byte_alphabet
from tests.support.control_lowering import compiled
from tests.support.control_sources import CACHE
from tests.support.runtime_api import Failed, Module, call
from tests.support.runtime_modules import with_structure
from tests.support.text_runtime import opened, own_library
from tests.support.vocabulary_rules import with_table

MOST_SECONDS = 5.0  # minutes and hours without a bound


@contextmanager
def soon() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < MOST_SECONDS


@pytest.mark.parametrize("blocks", [4096, 4097, 2**32 - 1])
def test_blocks_without_rows(tmp_path: Path, blocks: int) -> None:
    """A growth may have as many blocks of no bytes as fit the field: a state of it has none."""
    image = read_module(compiled(CACHE).to_bytes())
    (variant,) = image.variants
    (entry,) = variant.entry_points
    (growth, *others) = entry.program.growths
    empty = replace(growth, blocks=blocks, stride_bytes=0, row_bytes=1)
    code = replace(entry.program, growths=(empty, *others))
    variant = replace(variant, entry_points=(replace(entry, program=code),))
    data = module_bytes(replace(image, variants=(variant,)))
    path = tmp_path / "state"
    with own_library(), aot.load(data) as program, soon():
        program.save_state(path)
        program.load_state(path)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(RuntimeFailure, match="its header says"):
            program.load_state(path)


def test_a_full_table_of_symbols() -> None:
    """Each word is looked for in some slots of a table in which no slot ends the search."""

    def fill(table: Any) -> None:
        table.lookup = np.ones(1 << 22, np.uint32)
        table.ignoresMerges = 1

    tokeniser = opened(with_table(fill))
    with soon():
        assert len(tokeniser.encode("some words " * 1000)) > 0


def _template(functions: int, parameters: int) -> list[int]:
    """Code of functions that do nothing and have the names of their parameters in common."""
    names_at = 1 + HEADER_WORDS * functions
    begin = names_at + parameters
    words = [functions]
    for number in range(functions):
        own = (parameters, 0, parameters, 0, names_at)
        words += [begin + number, begin + number + 1, *own, 2**32 - 1 if number == 0 else 0]
    return words + [0] * parameters + [fbs.TemplateOp.RETURN] * functions


@pytest.mark.parametrize(("functions", "is_refused"), [(1, False), (2, True), (9, True)])
def test_functions_that_share_names(functions: int, is_refused: bool) -> None:
    def change(table: Any) -> None:
        table.chatCode = _template(functions, 100)
        table.chatTexts, table.chatTextEnds = list(b"n"), [1]

    data = with_table(change)
    if not is_refused:
        opened(data)
        return
    with pytest.raises(RuntimeFailure, match="functions share the names of parameters"):
        opened(data)


@pytest.mark.parametrize(("count", "is_refused"), [(900, False), (1300, True)])
def test_segments_that_share_bytes(count: int, is_refused: bool) -> None:
    """Segments that all name the same MiB of constants: the search for damage reads less than a
    GiB in all; a file that would make it read more is refused."""
    b = Builder()
    values = np.ones((8, 32768), np.float32)
    b.output("y", b.op("matmul", b.input("x", "f32[4, 8]"), b.constant(values)))

    begins = []

    def change(root: fbs.ModuleT) -> None:
        pool = root.rodata
        begins.append(pool.offset)
        root.rodataSegments = [
            fbs.SegmentT(pool.offset, pool.length, pool.alignment, pool.checksum)
            for _ in range(count)
        ]

    data = with_structure(aot.compile(b.module(), targets=["host"]).to_bytes(), change)
    if is_refused:
        with pytest.raises(Failed, match="segments share the file's bytes too often") as caught:
            Module(data)
        assert caught.value.status == "malformed"
        return
    damaged = bytearray(data)
    damaged[begins[0]] ^= 1
    module = Module(bytes(damaged))
    with pytest.raises(Failed, match="rodata part 0 is wrong"), soon():
        call("aot_module_verify_rodata", module.handle)
    module.close()


def test_special_tokens_of_one_text() -> None:
    """One control token again and again, which nobody looks for."""
    more = 60_000
    token = list(ALPHABET).index(byte_alphabet(b"a"))

    def repeat(table: Any) -> None:
        table.tokenCount += more
        types = bytearray(table.tokenTypes)
        types[token] = fbs.TokenType.CONTROL
        table.tokenTypes = bytes(types) + bytes(more)
        table.symbolEnds = [*table.symbolEnds, *[table.symbolEnds[-1]] * more]
        table.tokenScores = [*table.tokenScores, *[0] * more]
        table.lookup = np.zeros(1 << 16, np.uint32)
        table.specials = np.full(more, token, np.uint32)

    tokeniser = opened(with_table(repeat))
    with soon():
        assert len(tokeniser.encode("a" * 200_000)) == 200_000
