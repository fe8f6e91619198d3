"""The command: results, exit codes, one clear line for every failure, and never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.cli import main as cli
from aot.cli import text as cli_text
from aot.errors import InternalError, UnsupportedError
from aot.runtime import loader
from aot.target.model import Target
from tests.support.paths import ROOT

MODEL = """
func @main(%x: f32[N, 3]) -> ("y", "shape of/x") {
  %1 = relu(%x) : f32[N, 3]
  %2 = add(%1, %x) : f32[N, 3]
  return(%1, %2)
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model as text IR, in a folder of its own that is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.ir"
    path.write_text(MODEL, encoding="utf-8")
    return path


@pytest.fixture
def compiled(model: Path) -> Path:
    path = model.with_suffix(".aotm")
    assert cli.main(["compile", str(model), "-o", str(path)]) == 0
    return path


def aotc(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "aot.cli", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    settings: dict[str, object] = {"capture_output": True, "text": True, "env": environment}
    return subprocess.run(command, check=False, **{**settings, **options})  # type: ignore[call-overload, no-any-return]


def failure(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 1) -> str:
    """Standard error of a command that must fail with `code` and print nothing else."""
    capsys.readouterr()
    assert cli.main([str(a) for a in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


# ---- compile ----


def test_compile_is_quiet_in_a_pipe(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "model.ir", "-o", "out.aotm"]) == 0
    assert capsys.readouterr() == ("", "")
    assert Path("out.aotm").read_bytes() == aot.compile("model.ir").to_bytes()


def test_stats_have_the_documented_keys(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "model.ir", "-o", "out.aotm", "--stats", "stats.json"]) == 0
    assert cli.main(["compile", "model.ir", "-o", "out.aotm", "--stats", "-"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert (
        json.loads(Path("stats.json").read_text())["variants"][0]["ops"]
        == stats["variants"][0]["ops"]
    )
    (variant,) = stats["variants"]
    for level in ("structural", "despecialised", "emitted"):
        found = variant["executables"][level]
        assert set(found) == {"met", "kept", "bytes_saved", "seconds_saved"}
    assert set(variant["alias"]) == {"builds", "solves", "updates"}
    assert variant["alias"]["builds"] == 1
    mechanisms = {"bytes_equal", "bytes_contained", "bytes_filled"}
    assert set(stats["rodata"]) == {"bytes_met", "bytes_kept", *mechanisms}
    for key in ("ops", "dispatches", "code_bytes", "arena_bytes", "arena_lower_bound_bytes"):
        assert isinstance(variant[key], int), key
    assert isinstance(variant["shape_rule_calls"], int)
    assert all(isinstance(s, float) for s in variant["seconds"].values())


def test_options_reach_the_compiler(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def fake(model: str, **options: object) -> aot.CompiledModule:
        seen.update(options, model=model)
        raise aot.CompileError("seen")

    monkeypatch.setattr(aot, "compile", fake)
    np.save("v.npy", np.arange(3))
    arguments = [
        "compile",
        "model.ir",
        "-o",
        "o.aotm",
        "--target",
        "x86-64-v2",
        "--target",
        "a.toml",
    ]
    arguments += [
        "--input-shape",
        "x=1x3xHx?",
        "--input-shape",
        "a=b=max_len,2",
        "--input-shape",
        "s=",
        "--input-shape",
        "b=d=?<=8x32*Hx32<=W<=960",
    ]
    arguments += ["--input-value", "sr=16000", "--input-value", "list=[1, 2.5]"]
    arguments += ["--input-value", "v=v.npy", "--optimize", "size", "--dump-ir", "ir"]
    arguments += ["--max", "/model/a=b=300", "--max-default", "16"]
    arguments += ["--storage", "fp16", "--report", "r.html", "--no-winograd"]
    arguments += ["--activations", "int8", "--arithmetic", "fp16"]
    arguments += ["--disable", "fusion", "--disable", "cse", "--entry-name", "vad", "--strip"]
    arguments += ["--tune", "20", "--tune-runner", "ssh board aot-run", "--tune-cache", "t.jsonl"]
    assert cli.main(arguments) == 1
    values = seen.pop("input_values")
    assert isinstance(values, dict)
    assert (values["sr"], values["list"], list(values["v"])) == (16000, [1, 2.5], [0, 1, 2])
    assert seen == {
        "model": "model.ir",
        "targets": ("x86-64-v2", "a.toml"),
        "input_shapes": {
            "x": (1, 3, "H", None),
            "a=b": ("max_len", 2),
            "s": (),
            "b=d": ("?<=8", "32*H", "32<=W<=960"),
        },
        "optimize": "size",
        "storage": "fp16",
        "arithmetic": "fp16",
        "activations": "int8",
        "winograd": False,
        "disable": ("fusion", "cse"),
        "entry_name": "vad",
        "strip": True,
        "metadata": {},
        "states": {},
        "context": 0,
        "all_logits": False,
        "cache_type": "f16",
        "sequences": 1,
        "random_seed": 0,
        "max_extents": {"/model/a=b": 300},
        "max_default": 16,
        "cache": True,
        "cache_dir": None,
        "jobs": 0,
        "limit_memory": 0,
        "tune": 20.0,
        "tune_runner": "ssh board aot-run",
        "tune_cache": "t.jsonl",
        "dump_ir": "ir",
        "prefix": None,
        "progress": None,
        "details": True,
    }


def _read_terminal(parent: int) -> bytes:
    """What is written to a pseudo-terminal until the other end is closed."""
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while chunk := os.read(parent, 65536):
            shown += chunk
    return shown


def test_a_terminal_sees_progress_and_a_summary(model: Path) -> None:
    """It is read while the command runs: a slow machine sees more progress than a terminal's
    buffer holds."""
    parent, child = pty.openpty()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read_terminal, parent)
        result = aotc(
            "compile", model, "-o", "out.aotm",
            capture_output=False, stdout=subprocess.PIPE, stderr=child,
        )  # fmt: skip
        os.close(child)
        text = reading.result().decode()
    os.close(parent)
    assert (result.returncode, result.stdout) == (0, "")
    assert f"out.aotm: {Path('out.aotm').stat().st_size:,} bytes in " in text
    for word in (
        "dispatches",
        " before equal ones became one",
        "bytes of code",
        "arena",
        "less than without",
    ):
        assert word in text


def test_dump_ir_writes_text_that_compiles(model: Path) -> None:
    assert cli.main(["compile", "model.ir", "-o", "a.aotm", "--dump-ir", "ir"]) == 0
    first, *rest = sorted(Path("ir").glob("*.ir"))
    assert rest
    assert cli.main(["compile", str(first), "-o", "b.aotm"]) == 0
    assert Path("a.aotm").read_bytes() == Path("b.aotm").read_bytes()


# ---- failures ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["compile", "absent.onnx", "-o", "o"],
            "cannot read absent.onnx: no such file or directory",
        ),
        (["compile", ".", "-o", "o"], "cannot read .: is a directory"),
        (["run", "absent.aotm"], "cannot read absent.aotm: no such file or directory"),
        (["inspect", "absent.aotm"], "cannot read absent.aotm: no such file or directory"),
        (
            ["inspect", "model.ir"],
            "model.ir: is text IR, not a module file: compile it first: "
            "aotc compile model.ir -o model.aotm",
        ),
        (["verify", "absent"], "cannot read absent: no such file or directory"),
        (
            ["compile", "model.ir", "-o", "no/o.aotm"],
            "cannot write no/o.aotm: no such file or directory",
        ),
        (
            ["compile", "model.ir", "-o", "/dev/full"],
            "cannot write /dev/full: no space left on device",
        ),
        (
            ["compile", "model.ir", "-o", "o", "--stats", "no/s.json"],
            "cannot write no/s.json: no such file or directory",
        ),
        (
            ["compile", "model.ir", "-o", "o", "--input-value", "x=a.npy"],
            "cannot read a.npy: no such",
        ),
        (
            ["compile", "model.ir", "-o", "o", "--input-value", "x=bad.npy"],
            "bad.npy is not a .npy file of numbers",
        ),
    ],
)
def test_a_failure_is_one_line(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("bad.npy").write_bytes(b"no array")
    shown = failure(capsys, *arguments)
    assert shown.startswith(f"aotc: error: {message}")
    assert shown.count("\n") == 1
    assert sorted(os.listdir()) in (["bad.npy", "model.ir"], ["bad.npy", "model.ir", "o"])


def test_a_broken_model_names_the_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.onnx").write_bytes(b"\x08\x07\xff\xff" * 20)
    Path("broken.ir").write_text("func @main(", encoding="utf-8")
    for name in ("broken.onnx", "broken.ir"):
        shown = failure(capsys, "compile", name, "-o", "o.aotm")
        assert shown.startswith(f"aotc: error: {name}")
        assert shown.count("\n") == 1
        assert not Path("o.aotm").exists()


def test_an_unknown_target_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = failure(capsys, "compile", "model.ir", "-o", "o.aotm", "--target", "z80")
    assert shown.startswith("aotc: error: unknown target 'z80'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile", "model.ir"], "missing option '-o' / '--output'"),
        (["compile"], "missing argument 'MODEL...'"),
        (["frobnicate"], "no such command 'frobnicate'"),
        (["compile", "model.ir", "-o", "model.ir"], "the output is the model itself"),
        (
            ["compile", "model.ir", "-o", "o", "--input-shape", "x"],
            "invalid value for '--input-shape': 'x' is not NAME=...",
        ),
        (
            ["compile", "model.ir", "-o", "o", "--input-shape", "x=1x-3"],
            "invalid value for '--input-shape': '1x-3' is not a shape such as 1x3xHx224: '-3'",
        ),
        (
            ["compile", "model.ir", "-o", "o", "--input-shape", "x=1xH<3"],
            "invalid value for '--input-shape': '1xH<3' is not a shape such as 1x3xHx224: expected "
            "the end, found '<' in dim 'H<3'",
        ),
        (
            ["compile", "model.ir", "-o", "o", *["--input-shape", "x=1x3"] * 2],
            "--input-shape is given twice for 'x'",
        ),
        (
            ["compile", "model.ir", "-o", "o", "--input-value", "x=random"],
            "invalid value for '--input-value': 'random' is not a .npy file, a number or a list",
        ),
        (
            ["run", "m", "--shape", "x=Nx3"],
            "invalid value for '--shape': 'Nx3' is not a shape such",
        ),
        (["verify", "model.ir", "--model", "m"], "--model goes with a module file only"),
        (["verify", "model.ir", "--tolerance", "-1"], "invalid value for '--tolerance': -1"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    first, second, *rest = failure(capsys, *arguments, code=2).splitlines()
    assert first.startswith(f"aotc: error: {message}")
    assert second.startswith("try 'aotc")
    assert rest == []


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "aotc compile model.onnx -o model.aotm" in failure(capsys, code=2)


def _raising(error: BaseException) -> object:
    def compile_(*_: object, **__: object) -> None:
        raise error

    return compile_


def test_unsupported_lists_everything(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = UnsupportedError(
        "model.onnx: 2 things are not supported:", ["node a: op Foo", "node b"]
    )
    monkeypatch.setattr(aot, "compile", _raising(error))
    assert failure(capsys, "compile", "model.ir", "-o", "o") == (
        "aotc: error: model.onnx: 2 things are not supported:\n  node a: op Foo\n  node b\n"
    )


def test_our_bug_asks_for_a_report(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(model.parent))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(aot, "compile", _raising(KeyError("lost")))
    shown = failure(capsys, "compile", "model.ir", "-o", "o")
    (repro,) = model.parent.glob("*.repro")
    assert shown == (
        "aotc: error: internal error: KeyError: 'lost'; this is a bug of aotc, please report it "
        f"with {repro} (AOT_TRACEBACK=1 shows more)\n"
    )
    assert "KeyError: 'lost'" in repro.read_text()
    assert "Traceback" in repro.read_text()


def test_a_failing_pass_s_own_repro_is_named(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = InternalError("pass cse failed: no\nplease report it with /tmp/cse.repro")
    monkeypatch.setattr(aot, "compile", _raising(error))
    assert failure(capsys, "compile", "model.ir", "-o", "o") == (
        "aotc: error: internal error: pass cse failed: no please report it with /tmp/cse.repro "
        "(AOT_TRACEBACK=1 shows more)\n"
    )


def test_a_traceback_is_there_on_request(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in failure(capsys, "run", "absent.aotm")


def test_an_interrupt_is_clean(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aot, "compile", _raising(KeyboardInterrupt()))
    assert failure(capsys, "compile", "model.ir", "-o", "o", code=130) == "aotc: interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_file(model: Path, number: signal.Signals) -> None:
    """The signal comes while the output is being written."""
    script = (
        "import os, sys, signal\n"
        # A parent in the background may have had it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from aot.cli import main as cli\nfrom aot.link import files\n"
        "real = os.write\n"
        f"def write(*what): real(*what), os.kill(os.getpid(), {int(number)})\n"
        "files.os.write = write\n"
        "sys.exit(cli.main(['compile', 'model.ir', '-o', 'out.aotm']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 128 + number
    assert "Traceback" not in result.stderr
    assert os.listdir() == ["model.ir"]


def test_a_broken_pipe_is_quiet(compiled: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    result = aotc("inspect", compiled, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert result.stderr == ""
    assert result.returncode == 141


PRINTING = (
    ["--help"], ["--version"], ["targets"], ["devices"], ["cache"], ["run", "MODULE"],
    ["run", "--help"], ["inspect", "MODULE"], ["inspect", "MODULE", "--json"],
    ["explain-dedup", "MODULE"], ["verify", "model.ir"], ["bench", "MODULE", "--runs", "1"],
    ["compile", "model.ir", "-o", "new.aotm", "--stats", "-"],
)  # fmt: skip


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_output_that_cannot_be_written(arguments: list[str], compiled: Path) -> None:
    """One line says so, and the exit status is that of a failure; whatever the command."""
    command = [str(compiled) if a == "MODULE" else a for a in arguments]
    with Path("/dev/full").open("w") as full:
        result = aotc(*command, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    expected = "aotc: error: cannot write to standard output: no space left on device"
    assert result.stderr.splitlines()[-1] == expected
    assert "internal" not in result.stderr
    assert result.returncode == 1


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_output_that_is_closed(closed: str, compiled: Path, model: Path) -> None:
    def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aot.cli.main", *map(str, arguments)]
        line = f'"$@" {closed}'
        return subprocess.run(
            ["sh", "-c", line, "sh", *command], stderr=subprocess.PIPE, text=True, check=False
        )

    result = shell("inspect", compiled)
    message = "aotc: error: cannot write to standard output: it is closed\n"
    assert (result.returncode, result.stderr) == (1, "" if "2>" in closed else message)
    quiet = shell("compile", model, "-o", "new.aotm")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert Path("new.aotm").read_bytes() == compiled.read_bytes()


@pytest.mark.parametrize(
    ("dims", "rest"),
    [("4", ""), ("N", " and 1 buffers that grow with the inputs"), ("N:..9", "")],
)
def test_a_summary_says_what_an_arena_s_size_leaves_out(dims: str, rest: str) -> None:
    b = Builder()
    x = b.op("reduce_sum", b.input("x", "f32[N, 64]"), axes=(1,))
    b.output("y", b.op("softmax", x, axis=0))
    made = aot.compile(b.module(), disable=["fusion"], input_shapes={"x": (dims, 64)})
    line = cli_text.compile_summary(made.stats, "out.aotm", 1, 1).splitlines()[1]
    size = made.stats["variants"][0]["arena_bytes"]
    assert line.endswith(f"arena {size:,} bytes{rest}")


# ---- run ----


def test_the_time_of_loading_is_the_module_s(
    compiled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python imports and links, once in a process, is over when the clock starts."""
    order: list[str] = []
    linked, clock = loader.load_library, time.perf_counter

    def recorded(name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (order.append(name), call())[1]

    monkeypatch.setattr(loader, "load_library", recorded("library", linked))
    monkeypatch.setattr("aot.cli.main.time.perf_counter", recorded("clock", clock))
    assert cli.main(["run", str(compiled), "--shape", "x=2x3"]) == 0, capsys.readouterr().err
    assert order[:2] == ["library", "clock"]


def test_run_describes_and_saves_outputs(
    compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("x.npy", np.array([[-1, 0, 2], [3, -4, 5]], np.float32))
    assert cli.main(["run", str(compiled), "--input", "x=x.npy", "--output", "results"]) == 0
    captured = capsys.readouterr()
    header, first, second = captured.out.splitlines()
    assert header.split() == ["output", "dtype", "shape", "min", "max", "mean"]
    assert first.split() == ["y", "float32", "2x3", "0", "5", "1.66667"]
    assert "loaded in" in captured.err
    assert np.array_equal(np.load("results/y.npy"), [[0, 0, 2], [3, 0, 5]])
    assert np.array_equal(np.load("results/shape_of_x.npy"), [[-1, 0, 4], [6, -4, 10]])
    del second


def test_run_takes_random_inputs_of_a_seed(
    compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for arguments in ([], ["--input", "x=random"], ["--seed", "1"], ["--shape", "x=5x3"]):
        assert cli.main(["run", str(compiled), *arguments]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]
    assert "1x3" in shown[0]
    assert "5x3" in shown[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "z=1"], "no input is called 'z': inputs are x"),
        (["--shape", "x=1x4"], "input x: f32[N, 3]: axis 1 is 3, its shape says 4"),
        (["--shape", "x=1"], "input x: f32[N, 3] has 2 dims, its shape 1"),
        (["--input", "x=wrong.npy"], 'input "x"'),
        (["--input", "x=[[1, 2]]"], 'input "x"'),
        (["--device", "vulkan"], ""),
    ],
)
def test_run_refuses_wrong_inputs(
    compiled: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    np.save("wrong.npy", np.zeros((1, 3), np.float64))
    shown = failure(capsys, "run", compiled, *arguments)
    assert shown.startswith(f"aotc: error: {message}")
    assert shown.count("\n") == 1


def test_a_damaged_module_is_refused(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = compiled.read_bytes()
    compiled.write_bytes(data[:-1])
    assert "truncated" in failure(capsys, "run", compiled)
    assert "truncated" in failure(capsys, "inspect", compiled)
    compiled.write_bytes(data[:80] + bytes([data[80] ^ 1]) + data[81:])
    assert "the structure's checksum is wrong" in failure(capsys, "run", compiled)
    assert "the structure's checksum is wrong" in failure(capsys, "inspect", compiled)


# ---- verify ----


def test_verify_compiles_and_compares(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "model.ir", "--shape", "x=7x3"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    titles = ["output", "dtype", "shape", "magnitude", "error", "noise", "verdict"]
    assert lines[0].split() == titles
    assert "7x3" in lines[1]
    assert lines[3].endswith("agrees with reference within 0.0001")
    assert os.listdir() == ["model.ir"]


def test_verify_finds_a_difference(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.ir").write_text(MODEL.replace("relu", "tanh"), encoding="utf-8")
    assert cli.main(["verify", str(compiled), "--model", "model.ir"]) == 0
    capsys.readouterr()
    assert cli.main(["verify", str(compiled), "--model", "other.ir"]) == 1
    captured = capsys.readouterr()
    assert "differs" in captured.out
    assert captured.err.endswith("does not agree with reference within 0.0001\n")


def test_verify_needs_the_model(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = failure(capsys, "verify", compiled, code=2)
    assert "a module file does not hold its model: give it with --model" in shown


# ---- inspect, targets ----


def test_inspect_shows_what_is_in_the_file(
    compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(compiled), "--program", "--verify"]) == 0
    text = capsys.readouterr().out
    assert "input  x: f32[N, 3]" in text
    assert "prepare:" in text
    assert "DISPATCH" in text
    assert cli.main(["inspect", str(compiled), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["file_bytes"] == compiled.stat().st_size
    (entry,) = facts["variants"][0]["entry_points"]
    assert entry["inputs"] == [
        {"name": "x", "dtype": "f32", "dims": [{"text": "N", "min": 0, "max": None}, 3]}
    ]
    assert "program" not in entry
    assert sum(e["code_bytes"] for e in facts["variants"][0]["executables"]) > 0


def test_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["targets"]) == 0
    text = capsys.readouterr().out
    assert "host is " in text
    assert cli.main(["targets", "--json"]) == 0
    names = [t["name"] for t in json.loads(capsys.readouterr().out)]
    assert names == [t.name for t in aot.targets()]
    assert all(name in text for name in names)


@pytest.mark.parametrize("target", aot.targets(), ids=lambda target: target.name)
def test_a_target_is_explained(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    """What its file says, each with what it means; the same for scripts."""
    assert cli.main(["targets", target.name]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{target.name}: {target.summary}\n\n")
    assert cli.main(["targets", target.name, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["name"], facts["device"], facts["arch"]) == (
        *(target.name, target.device, target.arch),
    )
    said = {line.split()[0] for line in text.splitlines()[2:] if line[:1].strip()}
    assert said == {
        k for k, v in facts.items() if v not in ("", []) and k not in ("name", "summary")
    }


def test_progress_is_a_line_that_is_gone_at_the_end() -> None:
    stream = io.StringIO()
    with cli_text.TerminalProgress(stream, "reading") as progress:
        progress("fuse", 0, 0)
        progress("compile", 3, 7)
    assert "\n\n" not in stream.getvalue()


def test_progress_shows_nothing_of_what_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_text.TerminalProgress, "PATIENCE_SECONDS", 60)
    stream = io.StringIO()
    with cli_text.TerminalProgress(stream, "reading"):
        assert stream.getvalue() == ""
    assert stream.getvalue() == ""


@pytest.mark.parametrize("is_still", [False, True])
def test_progress_names_what_takes_long_before_its_first_call(
    is_still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_text.TerminalProgress, "PATIENCE_SECONDS", 0)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich draws nothing elsewhere
    stream = io.StringIO()
    progress = cli_text.TerminalProgress(stream, "timing a.aotm", is_still=is_still)
    with progress:
        progress._timer.join()
    assert "timing a.aotm" in stream.getvalue()
    progress._start()  # a timer that is late draws nothing any more
    assert stream.getvalue().count("timing a.aotm") <= 2


@pytest.mark.parametrize("command", ["compile", "run", "verify", "inspect", "targets"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert command == "targets" or f"aotc {command} " in text.split("Examples:")[1]
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"aotc {aot.__version__}\n"
