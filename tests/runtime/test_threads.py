"""Threads of the CPU driver: every workgroup once, the same bits, memory of their own, and the ends
of their lives. What is worth sharing is decided by time; no test here depends on how long it takes.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.cli.main import cli
from aot.errors import RuntimeFailure
from aot.runtime import loader
from tests.support.paths import SUPPORT
from tests.support.runtime_api import (
    CountingAllocator,
    Failed,
    Module,
    Program,
    library,
    library_path,
    open_failure,
    opened,
)
from tests.support.runtime_build import RUNTIME, SANITIZE, build, library_sources, tool_sources
from tests.support.runtime_modules import (
    Assembler,
    ModuleFile,
    arena_module,
    module,
    scale_module,
    tensor,
)

GROUPS = 400
SCRATCH = 2000
TSAN = ["-fsanitize=thread", "-g", "-O1"]


def private_module(grid: tuple[int, int, int] = (GROUPS, 1, 1), dispatches: int = 3) -> ModuleFile:
    """counts[x] += 1 in each of some dispatches, where scratch stayed the workgroup's own."""
    asm = Assembler()
    asm.block()
    one, size = asm.register(1), asm.register(SCRATCH)
    extents = [asm.register(n) for n in grid]
    zero_bytes, offset_out = asm.register(4 * GROUPS), asm.register()
    asm.emit("RETURN")
    asm.execute()
    asm.emit("FILL", 3, offset_out, zero_bytes, 0)
    for _ in range(dispatches):
        asm.emit("DISPATCH", 0, *extents, offset_out, size)
        asm.emit("DISPATCH", 0, one, one, one, offset_out, size)  # too small to share
    asm.emit("RETURN")
    program = asm.program(outputOffsetRegisters=[offset_out])
    outputs = [tensor("counts", "u32", GROUPS)]
    return module(program, [], outputs, kernels=("private",), scratch_bytes=SCRATCH)


@pytest.mark.parametrize("flags", [["-O2"], TSAN, SANITIZE], ids=["plain", "tsan", "asan"])
def test_the_workers_themselves(flags: list[str]) -> None:
    """runtime/tests/test_workers.c."""
    names = ("os_threads_posix", "os_posix", "alloc", "status")
    sources = [RUNTIME / "tests/test_workers.c", RUNTIME / "drivers/cpu/workers.c"]
    sources += [RUNTIME / f"src/{name}.c" for name in names]
    program = build("test-workers", sources, [*flags, "-pthread", "-Wl,--wrap=pthread_create"])
    if program is None:
        pytest.skip("gcc is not installed")
    result = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("grid", [(GROUPS, 1, 1), (20, 5, 4), (1, 1, 4)])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_workgroup_runs_once_on_scratch_of_its_own(
    threads: int, grid: tuple[int, int, int]
) -> None:
    expected = np.zeros(GROUPS, np.uint32)
    places = np.arange(grid[0]) + (
        20 * np.arange(grid[1]) + 100 * np.arange(grid[2])[:, None]
    ).reshape(-1, 1)
    expected[places.ravel()] = 3
    expected[0] += 3
    with opened(private_module(grid).to_bytes(), threads=threads) as program:
        assert program.info().threads == threads
        each = SCRATCH if threads == 1 else -(-SCRATCH // 64) * 64
        assert program.info().scratch_bytes == threads * each
        for _ in range(40):
            program.run()
            np.testing.assert_array_equal(program.output(0), expected)


def test_the_thread_sanitizer_finds_nothing(tmp_path: Path) -> None:
    tool = build("aot-run", tool_sources(), [*TSAN, "-pthread"])
    if tool is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "m.aotm"
    for file, options in (
        (private_module(), ()),
        (arena_module(), ("--random", "--shape", "x=1000")),
    ):
        path.write_bytes(file.to_bytes())
        command = [tool, path, *options, "--runs", "30", "--threads", "4", "--profile"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a product and a softmax on odd extents, as a file."""
    from aot.builder import Builder

    rng = np.random.default_rng(1)
    b = Builder()
    x = b.input("x", "f32[1, 8, 33, 47]")
    filters = rng.standard_normal((40, 8, 3, 3), np.float32)
    y = b.op(
        "tanh",
        b.op("conv", x, filters, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1),
    )
    rows = b.op("reshape", y, shape=(40, 33 * 47))
    z = b.op("matmul", rows, rng.standard_normal((33 * 47, 64), np.float32))
    b.output("y", y)
    b.output("s", b.op("softmax", z, axis=1))
    path = tmp_path_factory.mktemp("threads") / "model.aotm"
    aot.compile(b.module()).save(path)
    return path


def test_the_bits_do_not_depend_on_the_threads(compiled: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 33, 47), np.float32)
    with aot.load(compiled) as program:
        expected = program({"x": x})
    for threads in (2, 3, 5):
        with aot.load(compiled, threads=threads) as program:
            assert program.threads == threads
            for _ in range(25):
                for name, array in program({"x": x}).items():
                    np.testing.assert_array_equal(
                        array.view(np.uint32), expected[name].view(np.uint32)
                    )


def test_programs_share_nothing(compiled: Path) -> None:
    """Several at once, each with threads of its own, on threads of the application."""
    x = np.random.default_rng(0).standard_normal((1, 8, 33, 47), np.float32)
    with aot.load(compiled) as program:
        expected = program({"x": x})["s"]
    wrong: list[str] = []

    def work() -> None:
        for _ in range(3):
            with aot.load(compiled, threads=2) as own:
                for _ in range(10):
                    if not np.array_equal(own({"x": x})["s"], expected):
                        wrong.append("differs")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_sixteen_programs_of_one_module(compiled: Path) -> None:
    """Each with three threads, under the thread sanitizer (many_programs.c)."""
    sources = [SUPPORT / "many_programs.c", *library_sources()]
    program = build("many-programs", sources, [*TSAN, "-pthread"])
    if program is None:
        pytest.skip("gcc is not installed")
    command = [program, compiled, "16", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


def test_a_program_goes_on_alone_in_a_fork(compiled: Path) -> None:
    script = f"""
import os, sys
import numpy as np
import aot
x = np.ones((1, 8, 33, 47), np.float32)
program = aot.load({str(compiled)!r}, threads=3)
expected = program({{"x": x}})["s"]
child = os.fork()
if child == 0:
    same = all(np.array_equal(program({{"x": x}})["s"], expected) for _ in range(3))
    program.close()
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
assert np.array_equal(program({{"x": x}})["s"], expected)
program.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_run_with_threads_allocates_nothing() -> None:
    allocator = CountingAllocator()
    with opened(private_module().to_bytes(), allocator, threads=3) as program:
        program.run()
        before = allocator.calls
        for _ in range(10):
            program.run()
        assert allocator.calls == before
    assert (allocator.live, allocator.errors) == ({}, [])


def test_every_allocation_may_fail() -> None:
    file = private_module().to_bytes()
    for fail_at in range(1000):
        allocator = CountingAllocator(fail_at)
        try:
            with opened(file, allocator, threads=3) as program:
                program.run()
            break
        except Failed as error:
            assert error.status == "memory"
        finally:
            assert (allocator.live, allocator.errors) == ({}, [])
    assert fail_at > 8


def test_numbers_of_threads() -> None:
    file = scale_module().to_bytes()
    error = open_failure(file, threads=257)
    assert (error.status, error.message) == ("argument", "257 threads, at most 256 expected")
    module_ = Module(file)
    program = Program(module_, threads=0)
    assert program.info().threads == 1
    program.close()
    module_.close()


def test_the_binding_refuses_impossible_numbers(compiled: Path) -> None:
    for threads in (0, -1, 257):
        with pytest.raises(RuntimeFailure, match=f"{threads} threads, expected 1 to 256"):
            aot.load(compiled, threads=threads)


def test_a_build_without_threads(tmp_path: Path) -> None:
    tool = build("aot-run", tool_sources(), ["-O1", "-DAOT_THREADS=0"])
    if tool is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "m.aotm"
    path.write_bytes(private_module().to_bytes())
    command = [tool, path, "--threads"]
    alone = subprocess.run([*command, "1"], capture_output=True, text=True, check=False)
    assert (alone.returncode, alone.stderr) == (0, "")
    result = subprocess.run([*command, "2"], capture_output=True, text=True, check=False)
    message = "2 threads wanted, this runtime was built without threads"
    assert result.returncode == 1
    assert result.stderr.endswith(f"{message}\n")


def test_the_command(compiled: Path) -> None:
    result = CliRunner().invoke(cli, ["run", str(compiled), "--threads", "2"])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(cli, ["run", str(compiled), "--threads", "0"]).exit_code == 2


# ---- what is worth sharing: runtime/drivers/cpu/sharing.c ----


class _Sharing(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_uint32),
        ("site_count", ctypes.c_uint32),
        ("sites", ctypes.c_void_p),
        ("runs", ctypes.c_uint64),
        ("alone_ns", ctypes.c_uint64),
        ("wall_ns", ctypes.c_uint64),
        ("mode", ctypes.c_int),
        ("mode_runs", ctypes.c_uint32),
        ("rest_runs", ctypes.c_uint32),
        ("sum_wall_ns", ctypes.c_uint64),
        ("sum_alone_ns", ctypes.c_uint64),
        ("shared_wall_ns", ctypes.c_uint64),
    )


class _Share(ctypes.Structure):
    _fields_ = (
        ("chunk", ctypes.c_uint64),
        ("wakes", ctypes.c_bool),
        ("is_measured", ctypes.c_bool),
    )


class Sharing:
    """aot_sharing_t of a program of some words."""

    def __init__(self, threads: int, words: int = 100) -> None:
        self.lib = library()
        self.allocator = CountingAllocator()
        self.hooks = self.allocator.hooks()
        self.table = _Sharing()
        u64, pointer = ctypes.c_uint64, ctypes.c_void_p
        self.lib.aot_sharing_ask.restype = _Share
        self.lib.aot_sharing_ask.argtypes = (pointer, ctypes.c_uint32, u64)
        self.lib.aot_sharing_measure.restype = None
        self.lib.aot_sharing_measure.argtypes = (pointer, ctypes.c_uint32, *(u64,) * 4)
        self.lib.aot_sharing_begin_run.restype = ctypes.c_bool
        status = self.lib.aot_sharing_create(
            ctypes.byref(self.hooks), threads, words, None, ctypes.byref(self.table)
        )
        assert status == 0

    def begin(self) -> bool:
        """A run begins: whether threads should get up."""
        return bool(self.lib.aot_sharing_begin_run(ctypes.byref(self.table)))

    def ask(self, word: int, groups: int) -> tuple[int, bool, bool]:
        """Chunk, whether it wakes, whether it is measured."""
        share = self.lib.aot_sharing_ask(ctypes.byref(self.table), word, groups)
        return share.chunk, share.wakes, share.is_measured

    def measure(self, word: int, groups: int, done: int, own: int, wall: int | None = None) -> None:
        """One thread did `done` of `groups` in `own` nanoseconds, all was done after `wall`."""
        wall = own if wall is None else wall
        table = ctypes.byref(self.table)
        self.lib.aot_sharing_measure(table, word, groups, done, own, wall)

    def run(self, shared: int, alone: int) -> bool:
        """A run with one dispatch that takes one undisturbed thread 50 microseconds, and takes this
        many now; whether it was shared."""
        self.begin()
        chunk, _, is_measured = self.ask(10, 100)
        assert is_measured
        wall = 1000 * (shared if chunk else alone)
        self.measure(10, 100, 50 if chunk else 100, 25000 if chunk else wall, wall)
        return chunk > 0

    def close(self) -> None:
        """Releases it; everything must have been given back."""
        self.lib.aot_sharing_destroy(ctypes.byref(self.hooks), ctypes.byref(self.table))
        assert (self.allocator.live, self.allocator.errors) == ({}, [])


def test_what_is_not_known_is_shared_and_measured() -> None:
    sharing = Sharing(2)
    sharing.begin()
    assert sharing.ask(10, 320) == (20, True, True)  # 8 pieces a thread
    assert sharing.ask(10, 5) == (1, True, True)
    assert sharing.ask(10, 1) == (0, False, False)  # there is nothing to share
    sharing.close()


def test_small_dispatches_stay_with_the_caller() -> None:
    sharing = Sharing(2)
    sharing.begin()
    sharing.measure(10, 320, 320, 4999)
    assert sharing.ask(10, 320) == (0, False, True)
    sharing.measure(15, 320, 160, 2500)  # half of them: 5000 for all
    chunk, wakes, _ = sharing.ask(15, 320)
    assert (chunk, wakes) == (64, False)  # a microsecond a piece; sleepers go on sleeping
    sharing.measure(20, 320, 320, 30000)
    assert sharing.ask(20, 320) == (20, True, True)
    assert sharing.ask(20, 640)[0] == 40  # another grid: not known
    sharing.close()


def test_the_least_of_the_measurements_counts_and_is_forgotten_slowly() -> None:
    sharing = Sharing(4)
    for number in range(40):
        sharing.begin()
        chunk, _, is_measured = sharing.ask(10, 320)
        # what is shared is always measured
        assert is_measured == (chunk > 0 or number < 8 or number == 15 or number == 31)
        if is_measured:
            sharing.measure(10, 320, 320, 4000 if number == 0 else 10**9, 0)
        # it takes two measurements to believe in 5000 or more
        assert (chunk > 0) == (number == 0 or number > 2), number
    sharing.close()


def test_a_run_with_work_wakes_the_threads_of_the_next() -> None:
    sharing = Sharing(2)
    assert not sharing.begin()
    for word in (5, 10):
        sharing.measure(word, 100, 100, 50000)
    sharing.ask(5, 100)
    assert not sharing.begin()
    sharing.ask(5, 100)
    sharing.ask(10, 100)
    assert sharing.begin()
    assert not sharing.begin()
    sharing.close()


def test_sharing_that_pays_goes_on() -> None:
    sharing = Sharing(2)
    assert all(sharing.run(26, 50) for _ in range(200))
    # disturbed now and then
    assert all(sharing.run(26 if n % 8 else 150, 50) for n in range(200))
    sharing.close()


def test_sharing_that_does_not_pay_rests() -> None:
    """Where other processes run, each dispatch waits for a thread; one alone is faster."""
    sharing = Sharing(2)
    sharing.measure(10, 100, 100, 50000)
    shared = [sharing.run(200, 60) for _ in range(8 + 8 + 32 + 8 + 8 + 64 + 8)]
    # it is judged after 8 runs; a trial of 8 starts each rest, and each rest is twice as long
    turns = [(True, 8), (False, 8 + 32), (True, 8), (False, 8 + 64), (True, 8)]
    assert shared == [is_shared for is_shared, runs in turns for _ in range(runs)]
    assert sum(sharing.run(200, 60) for _ in range(2000)) < 100  # at most 256 at a time
    # the others are gone: found out after the rest, and it goes on
    found = [sharing.run(26, 50) for _ in range(400)]
    assert all(found[300:])
    sharing.close()


def test_one_thread_that_is_as_slow_is_no_reason_to_rest() -> None:
    sharing = Sharing(2)
    sharing.measure(10, 100, 100, 50000)
    shared = [sharing.run(200, 300) for _ in range(64)]
    assert shared == ([True] * 8 + [False] * 8) * 4
    sharing.close()


def test_times_and_grids_without_bounds() -> None:
    sharing = Sharing(256, words=0)
    huge = 2**63 - 1
    sharing.measure(0, huge, 1, 2**64 - 1, 2**64 - 1)
    assert sharing.ask(0, huge)[0] == huge // 2048
    sharing.measure(0, 2, 0, 5)  # nothing was done: nothing is known
    assert sharing.ask(0, huge)[0] == huge // 2048
    sharing.measure(0, 2, 2, 0)
    assert sharing.ask(0, 2)[0] == 0
    sharing.close()


@pytest.fixture(autouse=True)
def use_built_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of this checkout, not an installed one."""
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))
