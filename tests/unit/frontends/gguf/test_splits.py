"""GGUF files that were split: joined by their names, and what is missing or wrong is named."""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import aot
from aot.errors import CompileError
from aot.frontends import registry
from aot.frontends.gguf import import_gguf, read_gguf
from aot.frontends.gguf.splits import others
from aot.ir.text.printer import print_module
from aot.options import CompileOptions
from tests.support.gguf_files import data, write
from tests.support.gguf_models import MODELS

LLAMA = MODELS["llama"]
FIRST, SECOND, THIRD = (f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in three files, as the gguf package splits it."""
    write(tmp_path / "m.gguf", LLAMA, tensors_per_file=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FIRST, SECOND, THIRD]
    return tmp_path


def said(path: Path) -> str:
    with pytest.raises(CompileError) as caught:
        aot.compile(path)
    return str(caught.value)


@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
def test_any_part_names_the_model(folder: Path, name: str) -> None:
    whole = import_gguf(data(LLAMA))
    assert print_module(import_gguf(folder / name)) == print_module(whole)
    file = read_gguf(folder / name)
    assert len(file.memories) == 3
    file.forget()
    assert file.tensors["output_norm.weight"].data.any()


def test_missing_parts_are_named(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / THIRD).unlink()
    assert said(folder / FIRST) == (
        f"{folder / FIRST}: is one of 3 parts, of which 2 are missing:\n"
        f"  {folder / SECOND}\n  {folder / THIRD}"
    )


def test_parts_without_their_names(folder: Path) -> None:
    renamed = (folder / FIRST).rename(folder / "m.gguf")
    expected = "expected a name that ends in -00001-of-00003.gguf, or another number of a part"
    assert said(renamed) == f"{renamed}: is one of 3 parts, {expected}"
    with pytest.raises(CompileError) as caught:
        import_gguf(renamed.read_bytes())
    assert str(caught.value) == (
        "model: is one of 3 parts, which are found by name: give the path of one"
    )


def test_parts_that_are_not_what_their_names_say(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / THIRD).read_bytes())
    assert said(folder / FIRST) == (
        f"{folder / SECOND}: is part 3 of 3 by its keys, and 2 of 3 by its name"
    )
    (folder / SECOND).write_bytes(data(LLAMA))
    assert (
        said(folder / FIRST)
        == f"{folder / SECOND}: key 'split.no' is None, expected a number of parts"
    )


def test_tensors_of_two_parts_and_of_none(folder: Path) -> None:
    model = (folder / THIRD).read_bytes()
    last = b"blk.1.ffn_up.weight"
    assert model.count(last) == 1
    (folder / THIRD).write_bytes(model.replace(last, b"blk.0.ffn_up.weight"))
    assert said(folder / FIRST) == (
        f"{folder / THIRD}: has tensor 'blk.0.ffn_up.weight', which another part has"
    )
    (folder / THIRD).write_bytes(model)
    first = (folder / FIRST).read_bytes()
    at = first.index(b"split.tensors.count") + len("split.tensors.count") + 4
    (count,) = struct.unpack_from("<i", first, at)
    (folder / FIRST).write_bytes(first[:at] + struct.pack("<i", count + 1) + first[at + 4 :])
    assert said(folder / FIRST) == (
        f"{folder / FIRST}: key 'split.tensors.count' is {count + 1}, and the parts have {count} "
        "tensors"
    )


def test_a_build_knows_all_parts(folder: Path) -> None:
    """By the name of any, and no others by other names."""
    assert others(folder / SECOND) == [FIRST, THIRD]
    assert others(folder / "m.gguf") == []
    assert others(folder / "m-00001-of-00001.gguf") == []


def test_the_limit_of_memory_is_that_of_all_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def limited(length: int, given: int, where: str) -> AbstractContextManager[None]:
        seen.append(length)
        return nullcontext()

    monkeypatch.setattr(registry, "limited", limited)
    registry.read(registry.GGUF, folder / FIRST, CompileOptions())
    assert seen == [sum(path.stat().st_size for path in folder.iterdir())]
