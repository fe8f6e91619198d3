"""The file of what tuning learns: its lines, damage, and several processes that write at once."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aot
from aot.analysis.cost.candidates import Choice, runs_of
from aot.analysis.tuning import Tuning
from aot.builder import Builder
from aot.errors import TuningWarning
from aot.ir.graph import Module
from aot.target.selection import load
from aot.tuning.cache import TuningCache, TuningRecord, compiler_id
from tests.support.paths import ROOT
from tests.support.tuning_records import learnt

TILES = st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 4096)), max_size=3).map(tuple)
CHOICES = st.builds(Choice, TILES, st.sampled_from(("", "direct", "winograd")))
RATIOS = st.dictionaries(CHOICES, st.integers(1, 30000).map(lambda n: n / 10000), max_size=4)
KEYS = st.text("0123456789abcdef", min_size=40, max_size=40)


@given(
    st.builds(TuningRecord, KEYS, st.text(), st.text(), st.text(), CHOICES, CHOICES, RATIOS, RATIOS)
)
def test_a_line_says_what_was_learnt(one: TuningRecord) -> None:
    line = one.line()
    assert "\n" not in line
    assert TuningRecord.parse(line) == one


@given(st.data())
def test_a_damaged_line_is_refused_or_says_something_else(data: st.DataObject) -> None:
    """Never another error, and never what no choice can be."""
    line = learnt(1).line()
    at = data.draw(st.integers(0, len(line) - 1))
    line = line[:at] + data.draw(st.text(max_size=2)) + line[at + data.draw(st.integers(0, 9)) :]
    try:
        found = TuningRecord.parse(line)
    except ValueError:
        return
    assert all(1 <= n <= 4096 for tile in found.best.tiles for n in tile)


def test_damaged_lines_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [learnt(n).line() for n in range(3)]
    other = json.dumps({**json.loads(lines[1]), "best": {"tiles": [[0, 16]]}})
    path.write_text("\n".join([lines[0], lines[1][:50], other, "[]", "", lines[2]]) + "\n")
    with pytest.warns(TuningWarning) as said:
        cache = TuningCache(path)
    assert sorted(cache.lines) == [learnt(0).key, learnt(2).key]
    assert [str(w.message).split(" is damaged")[0] for w in said] == [
        f"{path}, line {n}" for n in (2, 3, 4)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(learnt(3))
        assert len(TuningCache(path).lines) == 3  # the damage is gone


def test_a_file_of_another_kind_has_few_warnings(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{learnt(0).line()}\n" + "x\n" * 5000)
    with pytest.warns(TuningWarning) as said:
        assert list(TuningCache(path).lines) == [learnt(0).key]
    texts = [str(w.message) for w in said]
    assert [t.split(" is damaged")[0] for t in texts[:-1]] == [
        f"{path}, line {n}" for n in range(2, 12)
    ]
    assert texts[-1] == f"{path}: 4990 more lines are damaged and left out"


def test_a_file_is_the_same_in_whatever_order_it_was_learnt(tmp_path: Path) -> None:
    one, other = TuningCache(tmp_path / "a"), TuningCache(tmp_path / "b")
    for number in range(5):
        one.put(learnt(number))
        other.put(learnt(4 - number))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from aot.tuning.cache import TuningCache
from tests.support.tuning_records import learnt
first = int(sys.argv[3])
cache = TuningCache(Path(sys.argv[2]))
for number in range(first, first + 25):
    cache.put(learnt(number))
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "t.jsonl"
    command = [sys.executable, "-c", WRITER, str(ROOT), str(path)]
    writers = [subprocess.Popen([*command, str(100 * n)]) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(TuningCache(path).lines) == 100
    assert [p.name for p in path.parent.iterdir()] == ["t.jsonl"]


def test_a_file_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = TuningCache(tmp_path / "file" / "t.jsonl") if sys.platform == "win32" else None
    cache = cache or TuningCache(None)
    cache.path = tmp_path / "file" / "t.jsonl"
    with pytest.warns(TuningWarning, match="what tuning learns is not kept: cannot write"):
        cache.put(learnt(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(learnt(1))  # once is enough
    assert len(cache.lines) == 2


def test_a_file_of_another_compiler_says_so(tmp_path: Path) -> None:
    b = Builder()
    b.output("y", b.op("relu", b.input("x", "f32[4]")))
    path = tmp_path / "t.jsonl"
    TuningCache(path).put(learnt(0, "another"))
    with pytest.warns(TuningWarning, match="another version of the compiler measured it"):
        aot.compile(b.module(), tune_cache=path)
    TuningCache(path).put(learnt(1, compiler_id()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        aot.compile(b.module(), tune_cache=path)


# ---- keys ----


def outlined(text: str) -> Module:
    from aot.ir.text.parser import parse_module

    return parse_module(text)


TEXT = """
func @main(%x: f32[1, 8, 32], %w: f32[32, 16]) -> ("y") {
  %y = dispatch(%x, %w) {executable = @e0, dims = [8, 2], ties = []} : f32[1, 8, 16]
  return(%y)
}
executable @e0[d0, d1](%0: f32[1, d0, 32], %1: f32[32, 16]) -> ("r0") bindings [2, 2, 3] {
  %2 = matmul(%0, %1) : f32[1, d0, 16]
  return(%2)
}
"""


def key(text: str, target: str = "x86-64-v3", compiler: str = "c") -> str:
    module = outlined(text)
    (function,) = module.executables
    return Tuning(compiler).key(function, runs_of(module)[function.name], load(target))


def test_a_key_is_of_what_the_plan_does_not_decide() -> None:
    own = key(TEXT)
    assert own == key(
        TEXT.replace(
            "bindings [2, 2, 3] {", "bindings [2, 2, 3] schedule [contraction lanes=8 tile=4:16] {"
        )
    )
    assert own == key(TEXT.replace("@e0", "@e7"))
    others = [
        key(TEXT, "x86-64-v4"),
        key(TEXT, compiler="d"),
        key(TEXT.replace("dims = [8, 2]", "dims = [8, 3]")),
        key(TEXT.replace("bindings [2, 2, 3]", "bindings [1, 2, 3]")),
        key(TEXT, "x86-64-v2"),
    ]
    assert len({own, *others}) == 1 + len(others)
