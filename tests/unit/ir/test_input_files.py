"""What is named for reading is a file: pipes, devices, sockets and folders are refused at once."""

from __future__ import annotations

import io
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.cli.text import NamedArray
from aot.errors import CompileError, RuntimeFailure
from aot.frontends import registry
from aot.frontends.gguf import import_gguf
from aot.frontends.onnx import import_onnx
from aot.frontends.text import load_text
from aot.frontends.tflite import import_tflite
from aot.ir import input_files
from aot.link.reader import read_module
from aot.runtime.text import Tokeniser
from aot.target.toml import load_file
from aot.tools.batch.file import read_batch
from aot.tuning.cache import TuningCache

TEXT = b'func @main(%x: f32[3]) -> ("y") {\n  %1 = relu(%x) : f32[3]\n  return(%1)\n}\n'


@pytest.fixture(params=["pipe", "folder", "socket", "device", "linked pipe"])
def no_file(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Something that is no file; its name fits any format."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    path = Path("thing")
    match request.param:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "device":
            path.symlink_to("/dev/zero")
        case "linked pipe":
            os.mkfifo("real")
            path.symlink_to("real")
    yield path


READERS: dict[str, Callable[[Path], Any]] = {
    "any model": aot.compile,
    "a format": registry.find,
    "a module": read_module,
    "ONNX": import_onnx,
    "TFLite": import_tflite,
    "GGUF": import_gguf,
    "text": load_text,
    "a target": load_file,
    "tuning records": TuningCache,
    "a batch": read_batch,
    "an array": lambda path: NamedArray().convert(f"x={path}.npy", None, None),
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused_at_once(no_file: Path, name: str) -> None:
    if name == "an array":
        no_file.rename(f"{no_file}.npy")
    with pytest.raises(CompileError) as failure:
        READERS[name](no_file)
    reason = str(failure.value).rpartition(": ")[2]
    kinds = {f"is a {kind}, not a file" for kind in ("pipe", "socket", "device")}
    assert reason in kinds | {"is a directory"}


@pytest.mark.parametrize("load", [aot.load, Tokeniser])
def test_the_runtime_refuses_what_is_no_file_at_once(
    no_file: Path, load: Callable[[Path], Any]
) -> None:
    with pytest.raises(RuntimeFailure, match=r"regular file|is a directory"):
        load(no_file)


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"some \xc3\xa9")
    (tmp_path / "link").symlink_to("real")
    for name in ("real", "link"):
        assert input_files.contents(tmp_path / name) == b"some \xc3\xa9"
        assert input_files.text(tmp_path / name) == "some é"
    with pytest.raises(FileNotFoundError):
        input_files.opened(tmp_path / "none")


class _Input(io.TextIOWrapper):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


def test_standard_input_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Input(bytes(4096)))
    assert input_files.standard_input(4096) == bytes(4096)
    monkeypatch.setattr(sys, "stdin", _Input(bytes(4097)))
    with pytest.raises(OSError, match="has more than 4096 bytes"):
        input_files.standard_input(4096)


def test_a_model_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "m.ir").write_bytes(TEXT)
    made = [tmp_path / "from_file.aotm", tmp_path / "from_input.aotm"]
    for source, output in zip((tmp_path / "m.ir", "-"), made, strict=True):
        line = ["compile", str(source), "-o", str(output)]
        result = CliRunner().invoke(cli, line, input=TEXT)
        assert result.exit_code == 0, result.output
    assert made[0].read_bytes() == made[1].read_bytes()
    result = CliRunner().invoke(cli, ["compile", "-", "-", "-o", "x.aotm"], input=TEXT)
    assert result.exit_code == 2 and "'-' is one model" in result.output
    assert np.all(aot.load(made[1])({"x": np.float32([-1, 0, 1])})["y"] == [0, 0, 1])


@pytest.mark.parametrize("read", [load_file, read_batch])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * 5000, "it is nested too deeply"),
        ("a = " + "{a = " * 5000, "it is nested too deeply"),
        ("a = " + "9" * 5000, "exceeds the limit"),
        ("a = 2024-99-99", "expected newline or end of document after a statement"),
        ("a", "expected '=' after a key in a key/value pair"),
    ],
)
def test_toml_that_is_none(
    read: Callable[[Path], Any], text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(CompileError, match=rf"^{path}: not valid toml: .*{reason}"):
        read(path)


def test_a_value_that_is_nested_too_deeply() -> None:
    with pytest.raises(click.BadParameter, match=r"is not a \.npy file, a number or a list"):
        NamedArray().convert("x=" + "[" * 100_000, None, None)
