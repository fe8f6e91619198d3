"""aot-run: its options, files, measurements and exit statuses."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.runtime_build import build_tool
from tests.support.runtime_modules import (
    INPUTS,
    OUTPUTS,
    Assembler,
    arena_module,
    dim,
    fbs,
    module,
    scale_module,
    stamp,
    structure_bytes_of,
    tensor,
    with_structure,
)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the tool; skips the test where it can't be built."""
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    command = [tool, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def expect_failure(message: str, *arguments: object, status: int = 1) -> None:
    """One line on stderr, nothing on stdout."""
    result = run(*arguments)
    assert result.stderr == f"aot-run: {message}\n"
    assert (result.returncode, result.stdout) == (status, "")


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """scale_module as a file."""
    path = tmp_path / "scale.aotm"
    path.write_bytes(scale_module().to_bytes())
    return path


def copy_module(dtype: str, *dims: int, name: str = "y") -> bytes:
    """An output that is the input."""
    asm = Assembler()
    asm.block()
    offset_in, offset_out = asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    width = 1 if dtype == "bool" else int(dtype[1:]) // 8
    size = asm.register(width * int(np.prod(dims, dtype=np.int64)))
    asm.emit("COPY", OUTPUTS, offset_out, INPUTS, offset_in, size)
    asm.emit("RETURN")
    program = asm.program(inputOffsetRegisters=[offset_in], outputOffsetRegisters=[offset_out])
    inputs, outputs = [tensor("x", dtype, *dims)], [tensor(name, dtype, *dims)]
    return module(program, inputs, outputs).to_bytes()


def test_reads_and_writes_arrays(scale: Path, tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", x)
    result = run(scale, "--input", f"x={tmp_path}/x.npy", "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), 2 * x)
    assert "output y: f32[4, 3]" in result.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["y.npy"]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 2), (2, 3, 1)])
@pytest.mark.parametrize(
    "dtype", ["f32", "f16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"]
)
def test_every_dtype_and_rank(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    numpy = np.dtype(bool) if dtype == "bool" else np.dtype(f"{dtype[0]}{int(dtype[1:]) // 8}")
    x = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape).astype(numpy)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "copy.aotm").write_bytes(copy_module(dtype, *shape))
    out = tmp_path / "out"
    result = run(tmp_path / "copy.aotm", "--input", f"x={tmp_path}/x.npy", "--output", out)
    assert result.returncode == 0, result.stderr
    found = np.load(out / "y.npy")
    assert (found.dtype, found.shape) == (numpy, shape)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", "ü", "x" * 101, "a b"])
def test_unsafe_names_become_numbers(name: str, tmp_path: Path) -> None:
    (tmp_path / "copy.aotm").write_bytes(copy_module("u8", 2, name=name))
    result = run(tmp_path / "copy.aotm", "--random", "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0.npy"]


NAME = "\x1b]0;owned\x07\x1b[2J\x9b31mr\ne\x7fd\r\u202e\u2069\u2028"
SHOWN = r"\u001b]0;owned\u0007\u001b[2J\u009b31mr\u000ae\u007fd\u000d\u202e\u2069\u2028"


def test_no_escape_sequence_is_printed(tmp_path: Path) -> None:
    """Whatever a module calls its outputs, executables and targets, and messages of the library."""
    path = tmp_path / "module.aotm"

    def rename(root: fbs.ModuleT) -> None:
        (variant,) = root.variants
        variant.target = variant.executables[0].name = NAME
        for named in (variant.entryPoints[0].inputs[0], variant.entryPoints[0].outputs[0]):
            named.name = NAME + "\U0001f600"

    path.write_bytes(with_structure(scale_module().to_bytes(), rename))
    shape = f"{NAME}\U0001f600=4x3"
    result = run(path, "--random", "--shape", shape, "--profile", "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    first, *rest = result.stdout.splitlines()
    assert first.startswith(f"{SHOWN} on ")
    assert f"output {SHOWN}\U0001f600: f32[4, 3]" in rest
    assert rest[-1].endswith(f"  {SHOWN}")
    assert result.stdout.replace("\n", "").isprintable()
    report = run(path, "--random", "--shape", shape, "--json", "--profile").stdout
    assert SHOWN in report and report[:-1].isprintable()
    assert json.loads(report)["target"] == NAME
    expect_failure(
        f'inputs missing: "{SHOWN}\U0001f600"; give --input NAME=FILE.npy or --random', path
    )
    expect_failure(
        f'no input "{SHOWN}", the program has "{SHOWN}\U0001f600"',
        *(path, "--input", f"{NAME}=x.npy"),
    )


def test_long_names_are_compared_whole(tmp_path: Path) -> None:
    """A name of any length is an input's, and one that begins with an input's name is none."""
    path = tmp_path / "module.aotm"
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    for length in (1, 510, 511, 512, 513, 3000):
        own = "n" * length

        def rename(root: fbs.ModuleT, own: str = own) -> None:
            root.variants[0].entryPoints[0].inputs[0].name = own

        path.write_bytes(with_structure(scale_module().to_bytes(), rename))
        found = run(path, "--input", f"{own}={tmp_path}/x.npy")
        assert (found.returncode, found.stderr) == (0, ""), length
        longer = run(path, "--random", "--shape", f"{own}=4x3", "--input", f"{own}n=random")
        assert longer.returncode == 1, length
        assert longer.stderr.startswith('aot-run: no input "nn'), length


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xff\x80\xc3", r"\ufffd\ufffd\ufffd"),
        (b"\xed\xa0\x80", r"\ufffd" * 3),
        (b"\xc0\x80a\xe2\x82", r"\ufffd\ufffda\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", r"\ufffd" * 4),
        ("é€\U0001f600 \xa0".encode(), "é€\U0001f600 \xa0"),
    ],
)
def test_names_that_are_no_text(data: bytes, shown: str, tmp_path: Path) -> None:
    file = copy_module("f32", 1, name="y" * len(data))
    path = tmp_path / "module.aotm"
    path.write_bytes(stamp(file.replace(b"y" * len(data), data), structure_bytes_of(file)))
    result = run(path, "--random")
    assert result.returncode == 0, result.stderr
    assert f"output {shown}: f32[1]" in result.stdout.splitlines()


def test_the_report(scale: Path) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    result = run(
        *(scale, "--input", "x=random", "--shape", "x=5x3", "--json"),
        *("--warmup", 3, "--runs", 20, "--threads", 1),
    )
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert before < report["first_result_ns"] < after
    phases = ["open", "verify", "map", "inputs", "prepare", "first_run"]
    assert list(report["phases_ms"]) == phases
    assert all(ms > 0 for ms in report["phases_ms"].values())
    assert report["runs"] == 20
    quantiles = ["min_ms", "median_ms", "p90_ms", "p99_ms", "max_ms"]
    assert 0 < report["min_ms"] <= report["mean_ms"] <= report["max_ms"]
    assert sorted(report[key] for key in quantiles) == [report[key] for key in quantiles]
    assert report["threads"] == 1
    assert report["peak_rss_kb"] > 100
    assert report["code_mapping"] == "mapped"
    assert (report["target"], report["device"], report["entry"]) == ("test", "cpu", "main")


def test_bench_and_seconds(scale: Path) -> None:
    random = (scale, "--random", "--shape", "x=1x3", "--json")
    assert json.loads(run(*random, "--bench", 25).stdout)["runs"] == 25
    assert json.loads(run(*random, "--seconds", 0.02).stdout)["runs"] > 10


def test_the_phase_before_main(scale: Path) -> None:
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    result = run(scale, "--random", "--shape", "x=1x3", "--json", "--started-ns", now)
    phases = json.loads(result.stdout)["phases_ms"]
    assert next(iter(phases)) == "exec"
    assert 0 < phases["exec"] < 60_000


def test_cold_starts(scale: Path) -> None:
    random = (scale, "--random", "--shape", "x=1x3", "--cold", 3)
    report = json.loads(run(*random, "--json").stdout)["cold"]
    assert list(report) == ["warm", "left_in_cache_bytes"]
    warm = report["warm"]
    assert warm["rounds"] == 3
    names = ["exec", "open", "verify", "map", "inputs", "prepare", "first_run"]
    assert list(warm["phases_ms"]) == names
    # the total of a round is the sum of its phases, but for the steps between them
    assert 0 < warm["min_total_ms"] <= warm["total_ms"] < 60_000
    assert max(warm["phases_ms"].values()) < warm["total_ms"]
    assert warm["peak_rss_kb"] > 100
    text = run(*random, "--drop-cache").stdout
    for name in (*names, "total", "warm", "medians of 3 processes"):
        assert name in text
    report = json.loads(run(*random, "--json", "--drop-cache").stdout)["cold"]
    assert "not_dropped" in report or report["dropped"]["rounds"] == 3


def test_cold_starts_that_fail(scale: Path) -> None:
    result = run(scale, "--random", "--cold", 2)
    message = 'aot-run: input "x": extent N is not fixed, give --shape x=...'
    assert result.returncode == 1
    assert result.stderr.splitlines() == [message, "aot-run: a process that was started failed"]


def test_the_times_of_launches(tmp_path: Path) -> None:
    """Two dispatches and a copy, and a dispatch in a loop."""
    path = tmp_path / "m.aotm"
    path.write_bytes(arena_module().to_bytes())
    command = (path, "--random", "--shape", "x=500", "--profile", "--threads", 2)
    report = json.loads(run(*command, "--json", "--runs", 12).stdout)["profile"]
    assert report["runs"] == 12
    launches = report["launches"]
    assert [launch["kind"] for launch in launches] == ["dispatch", "copy", "dispatch"]
    assert [launch["name"] for launch in launches] == ["stash", "copy", "gather"]
    assert [launch.get("grid") for launch in launches] == [[500, 1, 1], None, [500, 1, 1]]
    assert launches[1]["bytes"] == 2000
    words = [launch["word"] for launch in launches]
    assert words == sorted(set(words))
    for launch in launches:
        assert launch["count"] == 1
        assert 0 < launch["min_ms"] <= launch["median_ms"] < 60_000
    lines = run(*command).stdout.splitlines()
    assert [line.split()[-1] for line in lines[-3:]] == ["stash", "copy", "gather"]


def test_launches_of_a_loop_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "m.aotm"
    path.write_bytes(looping_module(5))
    report = json.loads(run(path, "--profile", "--json").stdout)["profile"]
    (launch,) = report["launches"]
    assert (launch["kind"], launch["count"], launch["bytes"]) == ("fill", 5, 8)


def looping_module(times: int) -> bytes:
    """Fills its output again and again."""
    asm = Assembler()
    asm.block()
    offset, size, zero, one = asm.register(), asm.register(8), asm.register(0), asm.register(1)
    limit, i = asm.register(times), asm.register()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("MOVE", i, zero)
    asm.emit("JUMP", 2)
    asm.block()
    asm.emit("FILL", OUTPUTS, offset, size, 0)
    asm.emit("ADD", i, i, one)
    asm.emit("BRANCH", asm.binary("LT", i, limit), 2, 3)
    asm.block()
    asm.emit("RETURN")
    program = asm.program(outputOffsetRegisters=[offset])
    return module(program, [], [tensor("y", "i64", 1)]).to_bytes()


def test_the_machine_is_measured() -> None:
    report = json.loads(run("--machine").stdout)
    arithmetic = [key for key in report if key != "read_gbs"]
    assert arithmetic[0] == "fma_gflops"
    assert set(arithmetic[1:]) <= {"half_gflops", "byte_gops", "byte_dot_gops"}
    assert len(report["read_gbs"]) == 4
    assert all(v > 0 for part in report.values() for v in part.values())


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """No writer is waited for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    expect_failure(f"{pipe}: not a regular file, expected a regular file", pipe)


def test_no_runs_means_the_first_inference_alone(scale: Path) -> None:
    result = run(scale, "--random", "--shape", "x=1x3", "--json", "--runs", 0, "--warmup", 9)
    report = json.loads(result.stdout.splitlines()[-1])
    assert (report["runs"], report["median_ms"]) == (0, None)


def test_runs_for_a_time(scale: Path) -> None:
    result = run(scale, "--random", "--shape", "x=1x3", "--json", "--min-ms", 20, "--runs", 1)
    assert json.loads(result.stdout)["runs"] > 10


def test_random_inputs_are_the_same_every_time(tmp_path: Path) -> None:
    for dtype, low, high in (("f32", -1, 1), ("f16", -1, 1), ("f64", -1, 1), ("i32", 0, 3)):
        (tmp_path / "copy.aotm").write_bytes(copy_module(dtype, 1000))
        outputs = []
        for number in range(2):
            result = run(tmp_path / "copy.aotm", "--random", "--output", tmp_path / f"{number}")
            assert result.returncode == 0, result.stderr
            outputs.append(np.load(tmp_path / f"{number}" / "y.npy"))
        np.testing.assert_array_equal(outputs[0], outputs[1])
        assert outputs[0].min() >= low
        assert outputs[0].max() <= high
        assert outputs[0].std() > 0.3


def test_the_file_can_be_copied_and_verified(tmp_path: Path) -> None:
    path = tmp_path / "arena.aotm"
    file = arena_module().to_bytes()
    path.write_bytes(file)
    shape = ("--random", "--shape", "x=9", "--json")
    report = json.loads(run(path, *shape, "--copy", "--verify").stdout)
    assert report["code_mapping"] == "copied"
    at = file.index(np.arange(1000, dtype=np.float32).tobytes())
    path.write_bytes(file[: at + 5] + b"!" + file[at + 6 :])
    assert run(path, *shape).returncode == 0
    result = run(path, *shape, "--verify")
    assert result.returncode == 1
    assert result.stderr.startswith(f"aot-run: {path}: the checksum of rodata pool is wrong (")


def test_wrong_inputs(scale: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float64))
    x = f"x={tmp_path}/x.npy"
    expect_failure('inputs missing: "x"; give --input NAME=FILE.npy or --random', scale)
    expect_failure('no input "z", the program has "x"', scale, "--input", "z=random")
    expect_failure('no input "z", the program has "x"', scale, "--random", "--shape", "z=1")
    expect_failure('input "x": expected dtype f32, found f64', scale, "--input", x)
    expect_failure(
        'input "x": extent N is not fixed, give --shape x=...', scale, "--input", "x=random"
    )
    expect_failure(
        'input "x": expected shape [N, 3], found [65, 3]: axis 0, N, must be at least 1 and at '
        "most 64",
        *(scale, "--random", "--shape", "x=65x3"),
    )
    for shape in ("", "x", "1x", "-1x3", "1x3y", "99999999999999999999"):
        if shape:
            message = f"--shape x={shape}: expected extents such as 1x3x48x192"
            expect_failure(message, scale, "--random", "--shape", f"x={shape}")
    expect_failure(
        f'input "x": cannot open {tmp_path}/none.npy: No such file or directory',
        *(scale, "--input", f"x={tmp_path}/none.npy"),
    )


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    """A .npy file with any header."""
    text = header.encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a .npy file"),
        (b"\x93NUMPX\x01\x00\x10\x00" + b" " * 16, "not a .npy file"),
        (npy(GOOD)[:30], "truncated"),
        (npy(GOOD, b"\0" * 11), "truncated"),
        (npy(GOOD.replace("1, 3", f"{2**60}, 1")), "truncated"),  # without memory for so much
        (npy(GOOD, version=2)[:11], "truncated"),
        (npy(GOOD, b"\0" * 12)[:6] + b"\x09" + npy(GOOD)[7:], "its version or header length"),
        (npy("x" * 70000, version=2), "its version or header length is not known"),
        (npy(""), "its header is not understood"),
        (npy("{'descr': '<f4'}"), "its header is not understood"),
        (npy(GOOD.replace("<f4", ">f4")), "its dtype is not one of"),
        (npy(GOOD.replace("<f4", "<c8")), "its dtype is not one of"),
        (npy(GOOD.replace("'<f4'", "'<f4")), "its dtype is not one of"),
        (npy(GOOD.replace("'<f4'", "[('a', '<f4')]")), "its dtype is not one of"),
        (npy(GOOD.replace("False", "True")), "it is in Fortran order, C order expected"),
        (npy(GOOD.replace("(1, 3)", "(1, x)")), "its shape is not understood"),
        (npy(GOOD.replace("(1, 3)", "(1, 3")), "its shape is not understood"),
        (npy(GOOD.replace("(1, 3)", "(-1, 3)")), "its shape is not understood"),
        (npy(GOOD.replace("(1, 3)", "(" + "1," * 33 + ")")), "its shape is not understood"),
        (npy(GOOD.replace("(1, 3)", "(99999999999999999999,)")), "its shape is not understood"),
        (npy(GOOD.replace("(1, 3)", f"({1 << 40}, {1 << 40})")), "its shape does not fit"),
        (npy("{'shape': (1, 3), 'fortran_order': False, 'descr': '"), "its dtype is not one of"),
    ],
)
def test_arrays_that_cannot_be_read(data: bytes, problem: str, scale: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    result = run(scale, "--input", f"x={path}")
    assert result.returncode == 1
    assert result.stderr.startswith(f'aot-run: input "x": {path}: {problem}')


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions_of_npy(version: tuple[int, int], scale: Path, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, x, version)
    result = run(scale, "--input", f"x={tmp_path}/x.npy", "--output", tmp_path)
    assert result.returncode == 0, result.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), 2 * x)


def test_files_that_cannot_be_loaded_or_written(scale: Path, tmp_path: Path) -> None:
    none = tmp_path / "none.aotm"
    expect_failure(f"cannot open {none}: No such file or directory", none)
    text = tmp_path / "text"
    text.write_text("this is no module, just a text that is long enough to have a header's size")
    expect_failure(f'{text}: not a module: it does not start with "AOTM"', text)
    expect_failure(
        f'{scale}: no entry point "other", variant "test" has "main"', scale, "--entry", "other"
    )
    random = (scale, "--random", "--shape", "x=1x3")
    result = run(*random, "--output", text)
    assert result.returncode == 1
    assert result.stderr == f"aot-run: cannot write {text}/y.npy: Not a directory\n"
    expect_failure(
        f"cannot make {none}/out: No such file or directory", *random, "--output", f"{none}/out"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a module file is missing (see --help)"),
        (("a", "b"), "only one module expected: b (see --help)"),
        (("a", "--what"), "no such option, or its value is missing: --what (see --help)"),
        (("a", "--what", "1"), "--what 1: no such option (see --help)"),
        (("a", "--runs"), "no such option, or its value is missing: --runs (see --help)"),
        (("a", "--runs", "-1"), "--runs -1: expected a number of runs (see --help)"),
        (("a", "--runs", "1x"), "--runs 1x: expected a number of runs (see --help)"),
        (("a", "--warmup", ""), "--warmup : expected a number of runs (see --help)"),
        (("a", "--min-ms", "nan"), "--min-ms nan: expected milliseconds (see --help)"),
        (
            ("a", "--threads", "0"),
            "--threads 0: expected a number of threads, 1 to 256, or auto (see --help)",
        ),
        (
            ("a", "--threads", "257"),
            "--threads 257: expected a number of threads, 1 to 256, or auto (see --help)",
        ),
        (("a", "--seconds", "x"), "--seconds x: expected seconds (see --help)"),
        (("a", "--bench", "x"), "--bench x: expected a number of runs (see --help)"),
        (("a", "--cold", "-2"), "--cold -2: expected a number of processes (see --help)"),
        (("a", "--started-ns", "0"), "--started-ns 0: expected nanoseconds (see --help)"),
        (("a", "--device", "gpu"), "--device gpu: expected auto, cpu or vulkan (see --help)"),
        (("a", "--input", "x"), "--input x: expected NAME=VALUE (see --help)"),
        (("a", "--input", "=x"), "--input =x: expected NAME=VALUE (see --help)"),
        (("a", "--shape", "x="), "--shape x=: expected NAME=VALUE (see --help)"),
        (
            ("a", "--input", "x=random", "--input", "x=y.npy"),
            "--input x=y.npy: the name was given before (see --help)",
        ),
    ],
)
def test_wrong_command_lines(arguments: tuple[str, ...], message: str) -> None:
    expect_failure(message, *arguments, status=2)


def test_help_and_version() -> None:
    result = run("--help")
    assert result.returncode == 0
    options = ("--input NAME=FILE.npy", "--shape", "--runs", "--min-ms", "--json", "exit status")
    options += ("--threads", "--profile", "--cold", "--drop-cache", "--machine", "--device")
    for option in options:
        assert option in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert run("--version").stdout.startswith("aot-run ")


@pytest.mark.parametrize("options", [["--help"], ["--version"], ["--random", "--shape", "x=2x3"]])
def test_output_that_cannot_be_written(options: list[str], scale: Path) -> None:
    tool = build_tool()
    if tool is None:
        pytest.skip("gcc is not installed")
    model = [scale] if "--random" in options else []
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [tool, *model, *options],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    expected = "aot-run: cannot write the report: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, expected)


def test_failures_of_a_run_are_failures(tmp_path: Path) -> None:
    asm = Assembler()
    asm.block()
    n = asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("CHECK", asm.binary("LT", n, asm.register(5)), 0)
    asm.emit("RETURN")
    asm.execute()
    asm.emit("RETURN")
    program = asm.program(messages=["N must be less than 5"])
    path = tmp_path / "check.aotm"
    path.write_bytes(module(program, [tensor("x", "u8", dim("N"))]).to_bytes())
    assert run(path, "--random", "--shape", "x=4").returncode == 0
    expect_failure("N must be less than 5", path, "--random", "--shape", "x=5")
