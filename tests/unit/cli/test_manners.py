"""What the command does for people: completion, sections of help, similar names, `aotc doctor`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from aot.cli import commands
from aot.cli import main as cli
from aot.target import files
from tests.support.paths import ROOT


def complete(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What bash is told of the last of the words."""
    monkeypatch.setenv(commands.COMPLETION_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert cli.main([]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found", "others"),
    [
        ("aotc comp", {"compile", "completion"}, {"run"}),
        ("aotc compile --optim", {"--optimize"}, {"--target"}),
        ("aotc compile --optimize s", {"size", "speed"}, {"balanced"}),
        ("aotc compile --target riscv", {"riscv64", "riscv64-v"}, {"nvidia"}),
        ("aotc completion f", {"fish"}, {"bash"}),
    ],
)
def test_completion(
    words: str,
    found: set[str],
    others: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = {line.split(",")[1] for line in complete(words, monkeypatch, capsys).splitlines()}
    assert found <= answers
    assert not others & answers


@pytest.mark.parametrize("shell", commands.SHELLS)
def test_completion_scripts_name_the_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert commands.COMPLETION_VARIABLE in script
    assert "aotc" in script


def test_bash_takes_the_completion() -> None:
    """As a user's shell would: the script is sourced, and asked for a word."""
    script = (
        f'aotc() {{ {sys.executable} -m aot.cli "$@"; }}; export -f aotc;'
        'eval "$(aotc completion bash)"; COMP_WORDS=(aotc ben); COMP_CWORD=1;'
        '_aotc_completion aotc; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.stdout.strip() == "bench", ran.stderr


def test_every_command_is_in_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [name for names in commands.SECTIONS.values() for name in names]
    assert sorted(listed) == cli.cli.list_commands(None)  # type: ignore[arg-type]
    for name in listed:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        assert commands._SUMMARIES[name] == command.get_short_help_str(limit=1000)
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "..." not in shown.split("Every day:")[1]
    for section in commands.SECTIONS:
        assert f"{section}:\n" in shown


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("andriod", "did you mean android or "),
        ("x86", "did you mean x86-64-v2 or "),
        ("armv7", "did you mean armv7-neon"),
        ("nvdia", "did you mean nvidia? "),
        ("z80", "'aotc targets' lists all "),
    ],
)
def test_similar_targets_are_named(
    name: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["targets", name]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"aotc: error: unknown target '{name}': {advice}")
    assert error.endswith("a path to a .toml file is one, too\n")


def test_summaries_are_those_of_the_targets() -> None:
    import aot

    assert files.summaries() == {t.name: t.summary for t in aot.targets()}


@pytest.mark.parametrize(
    "command",
    [
        ["run", "m.onnx"],
        ["bench", "m.onnx"],
        ["inspect", "m.onnx"],
        ["generate", "m.onnx", "Hello"],
        ["package", "m.onnx", "--format", "source", "-o", "out"],
        ["merge", "m.onnx", "-o", "out.aotm"],
    ],
)
def test_a_model_in_place_of_a_module_is_to_be_compiled_first(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
    )
    onnx.save(onnx.helper.make_model(graph), "m.onnx")
    assert cli.main(command) == 1
    assert capsys.readouterr().err == (
        "aotc: error: m.onnx: is an ONNX model, not a module file: compile it first: "
        "aotc compile m.onnx -o m.aotm\n"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


def test_doctor_finds_what_is_there_and_says_how_to_get_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("AOT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "vulkan", None)
    assert cli.main(["doctor", "--json"]) == 0
    found = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    assert found["compiled code"]["found"] == str(tmp_path / "cache")
    assert found["Vulkan"]["advice"].endswith("pip install 'aotc[vulkan]'")
    assert found["Android NDK"]["advice"].startswith(
        f"ANDROID_NDK_HOME is {tmp_path}, which has no"
    )
    assert found["python"]["found"].endswith(sys.executable)
    for finding in found.values():
        assert bool(finding["found"]) != bool(finding["advice"])
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"  + compiled code    {tmp_path / 'cache'}\n" in shown
    assert "  - Vulkan           " in shown
    missing = sum(not f["found"] for f in found.values())
    assert shown.endswith(f"\n{missing} missing, each needed for what is said of it only\n")


TEXT_MODEL = """\
func @main(%x: f32[2]) -> ("y") {
  %1 = relu(%x) : f32[2]
  return(%1)
}
"""


def aotc(*arguments: str, folder: Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, in a folder, with standard input."""
    command = [sys.executable, "-m", "aot.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, input=data, cwd=folder, capture_output=True, env=environment, check=False
    )


def test_modules_go_through_pipes(tmp_path: Path) -> None:
    (tmp_path / "m.ir").write_text(TEXT_MODEL)
    compiled = aotc("compile", "-", "-o", "-", folder=tmp_path, data=TEXT_MODEL.encode())
    assert (compiled.returncode, compiled.stderr) == (0, b"")
    assert aotc("compile", "m.ir", "-o", "m.aotm", folder=tmp_path).returncode == 0
    assert (tmp_path / "m.aotm").read_bytes() == compiled.stdout
    ran = aotc("run", "-", folder=tmp_path, data=compiled.stdout)
    assert ran.returncode == 0
    assert ran.stdout.startswith(b"output ")
    timed = aotc("bench", "-", "--runs", "1", "--json", folder=tmp_path, data=compiled.stdout)
    assert json.loads(timed.stdout)["module"] == "-"
    packed = aotc(
        *("package", "-", "--format", "source", "-o", "p"), folder=tmp_path, data=compiled.stdout
    )
    assert packed.returncode == 0, packed.stderr
    assert (tmp_path / "p" / "CMakeLists.txt").is_file()
    shutil.rmtree(tmp_path / "p")
    merged = aotc("merge", "m.aotm:a", "m.aotm:b", "-o", "-", folder=tmp_path)
    assert merged.stdout[:4] == b"AOTM"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.aotm", "m.ir"]
    both = aotc("compile", "m.ir", "-o", "-", "--stats", "-", folder=tmp_path)
    assert both.stderr.startswith(
        b"aotc: error: the module and --stats cannot both go to standard output\n"
    )


def test_no_module_goes_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["compile", "missing.onnx", "-o", "-"]) == 2
    assert capsys.readouterr().err.startswith("aotc: error: a module is no text: send it to a ")


def test_names_that_are_too_long_are_errors_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "m.ir").write_text(TEXT_MODEL)
    name = "x" * 5000
    for command in (["run", name], ["compile", name, "-o", "m"], ["compile", "m.ir", "-o", name]):
        ran = aotc(*command, folder=tmp_path)
        assert ran.returncode == 1
        assert ran.stderr.endswith(b": file name too long\n")
        assert len(ran.stderr) < 400
        assert ran.stderr.count(b"\n") == 1
