"""Standard streams of the command, what a terminal sees beside, and values of its options."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from onnx import TensorProto, helper

import aot
from aot.backends.cpu.object_cache import CacheInfo
from aot.cli import main as cli
from aot.cli import text as cli_text
from aot.errors import CompileError, UnsupportedError, one_line, printable

MODEL = 'func @main(%x: f32[N, 3]) -> ("y") {\n  %1 = relu(%x) : f32[N, 3]\n  return(%1)\n}\n'


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.ir"
    path.write_text(MODEL)
    return path


@contextmanager
def closed(number: int) -> Iterator[None]:
    """Without one of the standard streams."""
    kept = os.dup(number)
    os.close(number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that a test may replace."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)


@pytest.mark.usefixtures("streams")
def test_closed_streams_are_the_null_device(tmp_path: Path) -> None:
    """No file that is opened next gets the number of a stream."""
    with closed(0):
        cli_text.open_standard_streams()
        assert os.fstat(0).st_rdev == Path(os.devnull).stat().st_rdev
        with (tmp_path / "f").open("w") as file:
            assert file.fileno() > 2


@pytest.mark.usefixtures("streams")
def test_output_is_written_where_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    sys.stderr = None
    cli_text.open_standard_streams()
    print("grüße")
    print("beside", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("grüße\n", "beside\n")


NAME = "\x1b]0;owned\x07\x9b31mre\x7fd\u202e\u2066\u2028"
SHOWN = r"\u001b]0;owned\u0007\u009b31mre\u007fd\u202e\u2066\u2028"
LINES = "\n\taotc: error: forged\r\n"
LINES_SHOWN = r"\u000a\u0009aotc: error: forged\u000d\u000a"


@pytest.mark.usefixtures("streams")
def test_no_escape_sequence_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    cli_text.open_standard_streams()
    print(f"{NAME}\r\n\té", end="")
    sys.stderr.write(NAME)
    print(json.dumps([NAME], ensure_ascii=False), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    captured = capfd.readouterr()
    assert captured.out == f"{SHOWN}\\u000d\n\té"
    assert captured.err == f'{SHOWN}["{SHOWN}"]\n'
    assert json.loads(captured.err[len(SHOWN) :]) == [NAME]


def test_a_name_of_a_model_is_printed_without_escape_sequences(tmp_path: Path) -> None:
    """In what a command says of it, and in why it fails."""
    path = tmp_path / "model.onnx"
    name = NAME + LINES
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", name)]
    for op, status, found in (("Relu", 0, "stdout"), ("Nothing", 1, "stderr")):
        node = helper.make_node(op, ["x"], [name], name)
        graph = helper.make_graph([node], "g", info[:1], info[1:])
        path.write_bytes(helper.make_model(graph).SerializeToString())
        module = tmp_path / "model.aotm"
        command = [sys.executable, "-m", "aot.cli", "compile", path, "-o", module]
        result = subprocess.run(command, capture_output=True, check=False)
        if status == 0:
            command[3:] = ["run", module]
            result = subprocess.run(command, capture_output=True, check=False)
        assert result.returncode == status
        text = getattr(result, found).decode()
        assert (repr(name) if status else SHOWN + LINES_SHOWN) in text
        assert text.replace("\n", "").isprintable()
        assert not any(line.startswith("\taotc") for line in text.splitlines())


def test_errors_are_one_line_but_for_lists() -> None:
    assert str(CompileError(f"node {LINES}")) == f"node {LINES_SHOWN}"
    assert str(CompileError("node", [LINES, "b"])) == f"node\n  {LINES_SHOWN}\n  b"
    error = UnsupportedError(f"in {LINES}:", [LINES, "b"])
    assert str(error) == f"in {LINES_SHOWN}:\n  {LINES_SHOWN}\n  b"
    assert error.items == (LINES_SHOWN, "b")


@pytest.mark.parametrize("code", [*range(0xA1), *range(0x2020, 0x2070), 0xD800, 0xDFFF, 0xE000])
def test_characters_that_are_escaped(code: int) -> None:
    """Categories of Unicode: controls, formats of writing's direction, separators of lines."""
    character = chr(code)
    kinds = unicodedata.category(character), unicodedata.bidirectional(character)
    is_seen = kinds[0] not in ("Cc", "Cs", "Zl", "Zp") and kinds[1] not in (
        *("LRE", "RLE", "PDF", "LRO", "RLO"),
        *("LRI", "RLI", "FSI", "PDI"),
    )
    escaped = f"\\u{code:04x}"
    assert one_line(character) == (character if is_seen else escaped)
    assert printable(character) == (character if is_seen or character in "\n\t" else escaped)
    assert json.loads(f'"{escaped}"') == character


@pytest.mark.usefixtures("streams")
def test_progress_is_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    """On the stream below the one that escapes."""
    cli_text.open_standard_streams()
    stream = cli_text._unescaped(sys.stderr)
    stream.write("\x1b[2K")
    stream.close()
    print("after", file=sys.stderr, flush=True)
    assert capfd.readouterr().err == "\x1b[2Kafter\n"


def test_what_keeps_output_from_being_written_is_said(tmp_path: Path) -> None:
    for path, flags, reason in (
        ("/dev/full", os.O_WRONLY, "no space left on device"),
        (os.devnull, os.O_RDONLY, "it is closed"),
    ):
        number = os.open(path, flags)
        stream = cli_text._Output(number, "w", closefd=False)
        with pytest.raises(CompileError) as caught:
            stream.write(b"text")
        os.close(number)
        assert str(caught.value) == f"cannot write to standard output: {reason}"
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        cli_text._Output(writer, "w", closefd=False).write(b"text")
    os.close(writer)


@pytest.mark.usefixtures("streams")
def test_a_reader_that_has_seen_enough_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What is left in the buffer goes nowhere."""

    def targets() -> Any:
        raise BrokenPipeError

    monkeypatch.setattr(aot, "targets", targets)
    file = (tmp_path / "out").open("w")
    monkeypatch.setattr(sys, "stdout", file)
    assert cli.main(["targets"]) == 141
    file.write("the rest")
    file.close()
    assert (tmp_path / "out").read_text() == ""
    assert capsys.readouterr().err == ""


def test_a_bug_is_told_without_a_place_for_its_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError

    monkeypatch.setattr(aot, "targets", lambda: 1 / 0)
    monkeypatch.setattr(tempfile, "mkstemp", fails)
    assert cli.main(["targets"]) == 1
    assert capsys.readouterr().err == (
        "aotc: error: internal error: ZeroDivisionError: division by zero; this is a bug of aotc, "
        "please report it (AOT_TRACEBACK=1 shows more)\n"
    )


@pytest.mark.usefixtures("model")
def test_a_terminal_sees_summaries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["compile", "model.ir", "-o", "a.aotm", "--entry-name", "a"]) == 0
    size = Path("a.aotm").stat().st_size
    shown = capsys.readouterr().err.rpartition("\r")[2]
    assert re.search(rf"a\.aotm: {size:,} bytes in [0-9.]+ s", shown)
    assert cli.main(["compile", "model.ir", "-o", "b.aotm", "--entry-name", "b"]) == 0
    capsys.readouterr()
    assert cli.main(["merge", "a.aotm", "b.aotm", "-o", "ab.aotm"]) == 0
    summary, variant, rodata = capsys.readouterr().err.splitlines()
    merged = aot.merge(["a.aotm", "b.aotm"]).stats["merge"]
    kept = merged["variants"][0]["code"]["kept"]
    assert summary == f"ab.aotm: {Path('ab.aotm').stat().st_size:,} bytes, 2 modules"
    assert variant.endswith(
        f": 1 kernel of 2 in the modules, {kept:,} bytes of code, {kept:,} less than in all of them"
    )
    assert rodata == "  constants: 0 bytes, 0 less than in all of the modules"


@pytest.mark.parametrize(
    "kind",
    [
        cli_text.NamedShape(),
        cli_text.NamedArray(),
        cli_text.NamedState(),
        cli_text.NamedExtent(),
    ],
    ids=lambda kind: kind.name,
)
def test_what_is_converted_already_stays(kind: click.ParamType[Any]) -> None:
    """As click asks of its types: defaults are converted too."""
    pair = ("x", (1, 2))
    assert kind.convert(pair, None, None) is pair


def test_extents_are_numbers() -> None:
    assert cli_text.NamedExtent().convert("a=b=12", None, None) == ("a=b", 12)
    with pytest.raises(click.BadParameter, match="^'a=b' is not NAME=N$"):
        cli_text.NamedExtent().convert("a=b", None, None)
    assert cli_text.Threads().convert("auto", None, None) == "auto"


def test_arrays_of_names_that_files_cannot_have(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    cli_text.save_arrays({"a/b": np.arange(2), "a:b": np.arange(3), "": np.arange(4)}, folder)
    found = {path.name: np.load(path).size for path in folder.iterdir()}
    assert found == {"a_b.npy": 2, "a_b_.npy": 3, "_.npy": 4}
    (tmp_path / "file").touch()
    with pytest.raises(CompileError) as caught:
        cli_text.save_arrays({}, tmp_path / "file" / "below")
    assert str(caught.value) == f"cannot make {tmp_path / 'file' / 'below'}: not a directory"


def test_a_cache_without_a_folder() -> None:
    assert cli_text.cache_summary(CacheInfo(None, 0, 0, 0), is_cleared=False) == (
        "no folder is known for the cache: set AOT_CACHE_DIR"
    )


def test_a_signal_is_an_exception() -> None:
    """So that temporary files are removed on the way."""
    with pytest.raises(SystemExit) as caught:
        cli._terminate(15, None)
    assert caught.value.code == 143


def test_no_output_is_lost_where_there_is_no_standard_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # has no number
    cli._close_quietly()
