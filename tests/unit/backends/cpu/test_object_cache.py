"""The cache of compiled code: entries whole or absent, shared safely, and never worth a failure."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import aot
from aot.backends.cpu.object_cache import ObjectCache, default_folder, default_limit, key_of
from aot.cli import main as cli
from aot.errors import CacheWarning, CompileError
from aot.frontends.text import import_text
from tests.support.paths import ROOT

KEYS = [key_of([bytes([n])]) for n in range(40)]
MEGABYTE = 1 << 20


def filled(folder: Path, count: int, size: int = 1000, limit: int = MEGABYTE) -> ObjectCache:
    """A cache with `count` objects, the first one used longest ago."""
    cache = ObjectCache(folder, limit)
    for number in range(count):
        cache.put(KEYS[number], bytes([number]) * size)
        os.utime(path_of(folder, KEYS[number]), (1000 + number, 1000 + number))
    return cache


def path_of(folder: Path, key: str) -> Path:
    return folder / key[:2] / key[2:]


def held(folder: Path) -> list[int]:
    """Numbers of the keys that a cache in `folder` has; using none."""
    return [n for n, key in enumerate(KEYS) if path_of(folder, key).exists()]


def test_what_was_put_is_found(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "new" / "folder")
    assert cache.get(KEYS[0]) is None
    cache.put(KEYS[0], b"object")
    cache.put(KEYS[1], b"")
    assert (cache.get(KEYS[0]), cache.get(KEYS[1]), cache.get(KEYS[2])) == (b"object", b"", None)
    assert (cache.hits, cache.misses) == (2, 2)
    again = ObjectCache(tmp_path / "new" / "folder")
    assert again.get(KEYS[0]) == b"object"


def test_a_key_says_where_its_parts_end() -> None:
    assert key_of([b"ab", b"c"]) != key_of([b"a", b"bc"]) != key_of([b"abc"])


# header, the key in it, the checksum, the length, the object
@pytest.mark.parametrize("place", [0, 8, 40, 72, 80, -1])
def test_a_flipped_bit_is_a_miss_and_is_replaced(tmp_path: Path, place: int) -> None:
    filled(tmp_path, 1)
    path = path_of(tmp_path, KEYS[0])
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    cache = ObjectCache(tmp_path)
    assert cache.get(KEYS[0]) is None
    assert not path.exists()
    cache.put(KEYS[0], b"new")
    assert cache.get(KEYS[0]) == b"new"


def test_a_cut_and_a_grown_entry_are_misses(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    path = path_of(tmp_path, KEYS[0])
    whole = path.read_bytes()
    for data in (*(whole[:n] for n in (0, 7, 80, len(whole) - 1)), whole + b"x"):
        path.write_bytes(data)
        assert ObjectCache(tmp_path).get(KEYS[0]) is None


def test_an_entry_under_another_name_is_a_miss(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    other = path_of(tmp_path, KEYS[1])
    other.parent.mkdir()
    path_of(tmp_path, KEYS[0]).rename(other)
    assert ObjectCache(tmp_path).get(KEYS[1]) is None


def test_what_is_no_object_is_a_miss_and_is_replaced(tmp_path: Path) -> None:
    """Whatever its checksum says."""
    filled(tmp_path, 1)
    cache = ObjectCache(tmp_path)
    assert cache.get(KEYS[0], lambda data: data == bytes(1000)) == bytes(1000)
    assert cache.get(KEYS[0], lambda data: False) is None
    assert not path_of(tmp_path, KEYS[0]).exists()
    assert (cache.hits, cache.misses) == (1, 1)


def test_what_is_no_file_of_ours_is_a_miss(tmp_path: Path) -> None:
    """No writer of a pipe is waited for, no link is followed."""
    filled(tmp_path, 1)
    path = path_of(tmp_path, KEYS[0])
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    for make in (os.mkfifo, lambda path: path.symlink_to(elsewhere)):
        make(path)
        cache = ObjectCache(tmp_path)
        assert cache.get(KEYS[0]) is None
        assert not os.path.lexists(path)
        cache.put(KEYS[0], b"new")
        assert cache.get(KEYS[0]) == b"new"
        path.unlink()
    for name in ("met", "ledger"):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
    cache = ObjectCache(tmp_path)
    assert not cache.has_met(KEYS[0])
    cache.meet(KEYS[0])
    cache.put(KEYS[0], b"new")
    cache.close()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500])
def test_a_folder_of_the_user_s_own_is_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    assert ObjectCache.at(folder).folder == folder
    assert ObjectCache.at(folder / "missing").folder is not None


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    filled(folder, 2)
    folder.chmod(mode)
    with pytest.warns(CacheWarning) as caught:
        cache = ObjectCache.at(folder)
        assert cache.get(KEYS[0]) is None
        cache.put(KEYS[3], b"data")
    assert [str(w.message) for w in caught] == [
        f"compiled code is not cached: others may write to {folder}: 'chmod go-w' makes it the "
        "user's own"
    ]
    assert held(folder) == [0, 1]
    assert ObjectCache.at(folder, is_used=False).info().entries == 2
    folder.chmod(0o700)
    assert ObjectCache.at(folder).get(KEYS[0]) is not None


def test_the_folder_and_the_files_of_another_user_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 1)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert ObjectCache(tmp_path).get(KEYS[0]) is None
    with pytest.warns(CacheWarning, match=f"not cached: {tmp_path} belongs to another user$"):
        assert ObjectCache.at(tmp_path).folder is None


_MODEL = 'func @main(%x: f32[4]) -> ("y") {\n  %1 = sqrt(%x) : f32[4]\n  return(%1)\n}\n'


@pytest.mark.parametrize("damage", [b"garbage" * 40, b"", b"[1]", b'{"intervals": -1}', None])
def test_a_compile_replaces_what_is_no_object_nor_a_proof(
    tmp_path: Path, damage: bytes | None
) -> None:
    """Entries have right checksums; None stands for the first half of what was there."""
    module = import_text(_MODEL)
    first = aot.compile(module, cache_dir=tmp_path).to_bytes()
    keys = [path.parent.name + path.name for path in tmp_path.glob("??/*")]
    assert len(keys) == 2  # a kernel's object, and what is proved of it
    for key in keys:
        data = ObjectCache(tmp_path).find(key)
        assert data is not None
        ObjectCache(tmp_path).put(key, data[: len(data) // 2] if damage is None else damage)
    again = aot.compile(import_text(_MODEL), cache_dir=tmp_path)
    assert again.to_bytes() == first
    assert again.stats["variants"][0]["cache"] == {"hits": 0, "misses": 1}
    third = aot.compile(import_text(_MODEL), cache_dir=tmp_path)
    assert third.stats["variants"][0]["cache"] == {"hits": 1, "misses": 0}


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    # 1080 bytes an entry: nine are above 9000 bytes, six are below three quarters of it.
    cache = filled(tmp_path, 9, limit=9000)
    assert cache.get(KEYS[0]) is not None  # used now
    cache.close()
    assert held(tmp_path) == [0, 4, 5, 6, 7, 8]


def test_equal_times_go_by_name(tmp_path: Path) -> None:
    filled(tmp_path, 9, limit=9000).close()
    left = []
    for round_ in range(2):
        folder = tmp_path / str(round_)
        cache = filled(folder, 9, limit=9000)
        for key in KEYS[:9]:
            os.utime(path_of(folder, key), (1000, 1000))
        cache.close()
        left.append(held(folder))
    assert left[0] == left[1]
    names = sorted(KEYS[:9], key=lambda key: key[2:])
    assert sorted(left[0]) == sorted(KEYS.index(key) for key in names[3:])


def test_entries_are_counted_again_only_where_the_ledger_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 2).close()  # no ledger yet: counted
    trims: list[int] = []
    monkeypatch.setattr(ObjectCache, "_trim", lambda self: trims.append(1))
    filled(tmp_path, 3, limit=6000).close()  # 2 + 3 entries told: 5400 bytes
    assert trims == []
    filled(tmp_path, 1, limit=6000).close()
    assert trims == [1]
    (tmp_path / "ledger").write_bytes(b"12\nnonsense\n")
    filled(tmp_path, 1).close()
    assert trims == [1, 1]
    (tmp_path / "ledger").write_bytes(b"1\n" * 5000)
    filled(tmp_path, 1).close()
    assert trims == [1, 1, 1]


def test_nothing_is_counted_where_nothing_was_added(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    cache = ObjectCache(tmp_path, limit_bytes=1)
    cache.get(KEYS[0])
    cache.close()
    assert held(tmp_path) == [0, 1, 2, 3, 4]


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    cache = filled(tmp_path, 2)
    stale = path_of(tmp_path, KEYS[0]).with_name(KEYS[0][2:] + ".0123456789ab.tmp")
    fresh = path_of(tmp_path, KEYS[1]).with_name(KEYS[1][2:] + ".0123456789ab.tmp")
    notes = [tmp_path / "notes.txt", path_of(tmp_path, KEYS[0]).with_name("notes.tmp")]
    for path in (stale, fresh, *notes):
        path.write_bytes(b"x")
    os.utime(stale, (1000, 1000))
    os.utime(notes[1], (1000, 1000))
    cache.close()
    assert [p.exists() for p in (stale, fresh, *notes)] == [False, True, True, True]
    assert ObjectCache(tmp_path).info().entries == 2
    cleared = ObjectCache(tmp_path).clear()
    assert (cleared.entries, cleared.bytes) == (2, 2 * 1080)
    assert [p.exists() for p in (fresh, *notes)] == [False, True, True]
    assert ObjectCache(tmp_path).info().entries == 0


@pytest.mark.parametrize("jump", [-10 * 365 * 86400, -7200, 7200, 10 * 365 * 86400])
def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    """Entries stay, in their order; what was left before is still found to be stale."""
    left = path_of(tmp_path, KEYS[0]).with_name(KEYS[0][2:] + ".0123456789ab.tmp")
    filled(tmp_path, 3)
    left.write_bytes(b"x")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    cache = ObjectCache(tmp_path)
    cache.put(KEYS[3], b"data")
    cache._trim()
    assert not left.exists()
    assert held(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("step", ["open", "replace"])
def test_a_write_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int, step: str
) -> None:
    cache = filled(tmp_path, 1)

    def fail(self: Path, *_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(Path, step, fail)
    with pytest.warns(CacheWarning) as caught:
        for key in KEYS[1:4]:
            cache.put(key, b"data")
    assert [str(w.message) for w in caught] == [
        f"compiled code is not cached: cannot write {tmp_path}: {os.strerror(reason).lower()}"
    ]
    monkeypatch.undo()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [KEYS[0][2:]]
    assert cache.get(KEYS[0]) is not None, "what is there is still found"
    cache.close()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    cache = ObjectCache(tmp_path / "file")
    assert cache.get(KEYS[0]) is None
    with pytest.warns(CacheWarning, match="cannot write .*file: ") as caught:
        cache.put(KEYS[0], b"data")
        cache.put(KEYS[1], b"data")
    assert len(caught) == 1
    cache.close()
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_without_a_folder_nothing_is_kept() -> None:
    cache = ObjectCache(None)
    cache.put(KEYS[0], b"data")
    assert cache.get(KEYS[0]) is None
    cache.close()
    assert (cache.info().entries, cache.clear().entries) == (0, 0)


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", {"AOT_CACHE_DIR": "here", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "here"),
        ("linux", {"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/aotc"),
        ("linux", {"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/aotc"),
        ("linux", {"HOME": "/h"}, "/h/.cache/aotc"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/aotc"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/aotc/cache"),
        ("linux", {"HOME": ""}, None),
        ("linux", {}, None),
        ("win32", {"HOME": "/h"}, None),
    ],
)
def test_where_it_is(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], folder: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert default_folder(environment) == (None if folder is None else Path(folder))


def test_no_home_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AOT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.warns(CacheWarning, match="there is no home folder") as caught:
        cache = ObjectCache.at()
        cache.put(KEYS[0], b"data")
    assert len(caught) == 1


def test_the_limit() -> None:
    assert default_limit({}) == 512 * MEGABYTE
    assert default_limit({"AOT_CACHE_MB": "3"}) == 3 * MEGABYTE
    with pytest.raises(CompileError, match="AOT_CACHE_MB is 'much', expected a number of megab"):
        default_limit({"AOT_CACHE_MB": "much"})


_HAMMER = """
import sys, warnings
warnings.simplefilter("error")
from pathlib import Path
from aot.backends.cpu.object_cache import ObjectCache, key_of
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
for turn in range(60):
    cache = ObjectCache(folder, limit_bytes=20_000)
    for step in range(8):
        number = (seed * 7 + turn * 3 + step * 5) % 24
        key, data = key_of([b"%d" % number]), b"%d " % number * 400
        found = cache.get(key)
        assert found in (None, data), number
        if found is None or turn % 4 == 0:
            cache.put(key, data)
    cache.close()
"""


def test_several_processes_use_one_folder(tmp_path: Path) -> None:
    """They put, find and remove the same few entries; each finds an object whole or not at all."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _HAMMER, str(tmp_path), str(seed)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for seed in range(4)
    ]
    for process in running:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    assert not list(tmp_path.rglob("*.tmp"))
    # The last to be done may have added before another one counted.
    cache = ObjectCache(tmp_path, limit_bytes=20_000)
    cache._trim()
    assert cache.info().bytes <= 20_000


# ---- the command ----


def test_the_command_shows_and_clears(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path, 3)
    assert cli.main(["cache", "--cache-dir", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {
        "folder": str(tmp_path),
        "entries": 3,
        "bytes": 3 * 1080,
        "limit_bytes": 512 * MEGABYTE,
    }
    assert cli.main(["cache", "--cache-dir", str(tmp_path), "--info"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 3 objects, 3,240 bytes of at most 536,870,912\n"
    assert cli.main(["cache", "--cache-dir", str(tmp_path), "--clear"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 3 objects removed, 3,240 bytes\n"
    assert held(tmp_path) == []
    assert cli.main(["cache", "--clear", "--info"]) == 2


def test_the_command_warns_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.ir").write_text(
        'func @main(%x: f32[4]) -> ("y") {\n  %1 = relu(%x) : f32[4]\n  return(%1)\n}\n'
    )
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("AOT_CACHE_DIR", str(tmp_path / "file"))
    source, output = str(tmp_path / "model.ir"), str(tmp_path / "m.aotm")
    assert cli.main(["compile", source, "-o", output]) == 0
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("aotc: warning: compiled code is not cached: cannot write ")
    assert cli.main(["compile", source, "-o", output, "--no-cache"]) == 0
    assert capsys.readouterr() == ("", "")
