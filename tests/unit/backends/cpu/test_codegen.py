"""Objects of kernels: what their keys say, who makes them, and that the module never shows it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aot
import aot.ops
from aot.backends.cpu import codegen, llvm, workers
from aot.backends.cpu.codegen import CpuCodegen, object_key
from aot.backends.cpu.compile import FUNCTION_NAME, compile_kernel, machine_of, to_llvm
from aot.backends.cpu.object_cache import ObjectCache
from aot.backends.cpu.workers import CrashedError, UnavailableError, Workers
from aot.builder import Builder
from aot.errors import InternalError
from aot.ir.expr import Var
from aot.ir.graph import Module
from aot.ir.record import REGISTRY
from aot.ir.text.printer import print_module
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import BufferClass, Kernel, KernelBuilder, Space
from aot.kernels.lowering import lower
from aot.options import no_progress
from aot.passes.fusion.fuse import fuse
from aot.passes.fusion.outline import outline
from aot.passes.fusion.tie_operands import tie_operands
from tests.support.cpu_cases import access_cases
from tests.support.cpu_running import target_of
from tests.support.cpu_tiles import matmul_tile
from tests.support.kernel_terms import F32, f32, load, op, serial, store
from tests.support.lowering import sample_function
from tests.support.paths import ROOT

X86 = target_of("x86-64-v3")


def small(name: str = "k", number: float = 1.0, *, is_shared: bool = True) -> Kernel:
    """y = (x + number) + (x + number), the sum one node or two."""
    b = KernelBuilder(name)
    x = b.buffer("x", F32, BufferClass.INPUTS, (4,), (1,))
    y = b.buffer("y", F32, BufferClass.OUTPUTS, (4,), (1,), is_written=True)

    i = Var("i")
    once = op("add", load(x, i), f32(number))
    other = once if is_shared else op("add", load(x, i), f32(number))
    return b.build((serial(i, 4, [store(y, i, value=op("add", once, other))]),))


# ---- identity ----


def test_equal_kernels_have_one_fingerprint_whatever_their_names() -> None:
    assert fingerprint(small("a")) == fingerprint(small("b"))
    assert to_llvm(small("a"), X86) == to_llvm(small("b"), X86)


def test_every_kernel_has_a_fingerprint_of_its_own() -> None:
    made = [case.make() for case in access_cases()]
    prints = {fingerprint(k) for k in made}
    texts = {to_llvm(k, X86) for k in made}
    assert len(prints) >= len(texts), "what is compiled differently is told apart"
    assert prints == {fingerprint(case.make()) for case in access_cases()}


def sample_kernels() -> list[Kernel]:
    """A kernel for each op's first samples, as the compiler makes them."""
    made: list[Kernel] = []
    for _, record in sorted(REGISTRY.items()):
        samples = [s for s in record.samples if "layout" not in s.attrs][:2]
        for sample in samples if record.compute or record.kind.has_handwritten_kernel else []:
            function = sample_function(record, sample)
            fuse(function)
            tie_operands(function)
            module = Module([function])
            outline(module)
            made += [lower(f, X86) for f in module.executables]
    return made


def test_equal_fingerprints_are_equal_code() -> None:
    """For every op, and whenever a kernel is made: a cache that others filled changes no byte."""
    kernels = sample_kernels()
    texts: dict[bytes, str] = {}
    for kernel in [*kernels, *sample_kernels()]:
        text = to_llvm(kernel, X86)
        assert texts.setdefault(fingerprint(kernel), text) == text, kernel.name
    assert len(kernels) > 100
    assert len(set(texts.values())) <= len(texts) <= len(kernels)


def test_what_a_backend_sees_is_told_apart() -> None:
    kernel = small()
    others = [small(number=2.0), small(is_shared=False)]
    buffer = kernel.buffers[1]
    others.append(replace(kernel, buffers=(kernel.buffers[0], replace(buffer, strides=(2,)))))
    others.append(replace(kernel, params=kernel.params[:1]))
    b = KernelBuilder("k")
    scratch = b.scratch("s", F32, (4,), Space.REGISTER)
    others.append(replace(kernel, scratch=(scratch,)))
    prints = {fingerprint(k) for k in (kernel, *others)}
    assert len(prints) == len(others) + 1


def test_what_has_no_canonical_form_is_refused() -> None:
    kernel = replace(small(), params=(frozenset({1}),))  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="kernel k: a frozenset has no place in a kernel's id"):
        fingerprint(kernel)


def test_a_key_says_kernel_target_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    key = object_key(small(), X86)
    renamed = replace(X86, name="mine", summary="mine")
    assert key == object_key(small("other"), renamed)
    changed = [
        replace(X86, features=X86.features[:-1]),
        replace(X86, options=("-fast",)),
        replace(X86, tune="x86-64-v4"),
        replace(X86, max_stack_bytes=1),
        target_of("aarch64-generic"),
    ]
    keys = {object_key(small(), t) for t in changed} | {object_key(small(number=3.0), X86)}
    monkeypatch.setattr(codegen, "compiler_id", lambda: b"another")
    keys |= {key, object_key(small(), X86)}
    assert len(keys) == len(changed) + 3


def test_the_compiler_s_identity_covers_what_makes_code() -> None:
    """Every module that code generation loads is among the sources that are hashed."""
    script = (
        "import sys, aot.backends.cpu.compile, aot.kernels.transcendentals.expansion\n"
        "names = [n for n in sys.modules if n.startswith('aot.')]\n"
        "print(*filter(None, (getattr(sys.modules[n], '__file__', None) for n in names)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert len(loaded) > 20
    hashed = {ROOT / "aot" / place for place in codegen._SOURCES}
    # decide nothing about code
    apart = {
        *("aot/errors.py", "aot/version.py", "aot/backends/__init__.py"),
        "aot/target/host_cpu.py",
    }
    for path in map(Path, loaded):
        name = path.relative_to(ROOT).as_posix()
        assert {path, *path.parents} & hashed or name in apart, name


# ---- who makes them ----


@pytest.fixture
def kernels() -> list[Kernel]:
    """Enough text for several workers, with two that are equal."""
    made = [matmul_tile(height, 32, 16) for height in (6, 8, 10, 12)]
    return [*made, small("first"), small("second")]


def objects(kernels: list[Kernel], cache: ObjectCache, jobs: int) -> codegen.Objects:
    with CpuCodegen(cache, jobs) as maker:
        return maker.objects(kernels, X86, no_progress)


@pytest.fixture
def eager_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers for any text at all."""
    monkeypatch.setattr(codegen, "_POOL_BYTES", 1)
    monkeypatch.setattr(codegen, "_WORKER_BYTES", 1)


def test_objects_are_the_same_from_everywhere(
    tmp_path: Path, kernels: list[Kernel], eager_pool: None
) -> None:
    serial_ = objects(kernels, ObjectCache(None), 1)
    assert serial_.data == tuple(compile_kernel(k, X86) for k in kernels)
    assert (serial_.hits, serial_.misses, serial_.llvm_calls) == (0, 5, 5)
    cold = objects(kernels, ObjectCache(tmp_path), 3)
    warm = objects(kernels, ObjectCache(tmp_path), 3)
    assert cold.data == warm.data == serial_.data
    assert (cold.hits, cold.misses, cold.llvm_calls) == (0, 5, 5)
    assert (warm.hits, warm.misses, warm.llvm_calls) == (5, 0, 0)


def test_a_part_that_is_missing_is_made(tmp_path: Path, kernels: list[Kernel]) -> None:
    objects(kernels[2:], ObjectCache(tmp_path), 1)
    some = objects(kernels, ObjectCache(tmp_path), 1)
    assert (some.hits, some.misses, some.llvm_calls) == (3, 2, 2)
    assert some.data == tuple(compile_kernel(k, X86) for k in kernels)


def test_little_text_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "Workers", None)
    assert objects([small()], ObjectCache(None), 8).llvm_calls == 1


def test_processes_are_as_many_as_the_text_is_worth(
    monkeypatch: pytest.MonkeyPatch, kernels: list[Kernel]
) -> None:
    made: list[Workers] = []

    class Counted(Workers):
        def __init__(self, limit: int) -> None:
            super().__init__(limit)
            made.append(self)

    monkeypatch.setattr(codegen, "Workers", Counted)
    sizes = [len(to_llvm(k, X86)) for k in kernels[:5]]
    monkeypatch.setattr(codegen, "_POOL_BYTES", sum(sizes[:2]))
    monkeypatch.setattr(codegen, "_WORKER_BYTES", sum(sizes) // 2)
    objects(kernels, ObjectCache(None), 8)
    assert [w.count for w in made] == [2]
    objects(kernels, ObjectCache(None), 1)
    assert len(made) == 1


def test_variants_share_the_workers(eager_pool: None, kernels: list[Kernel]) -> None:
    with CpuCodegen(ObjectCache(None), 2) as maker:
        for name in ("x86-64-v3", "aarch64-generic"):
            target = target_of(name)
            made = maker.objects(kernels[:2], target, no_progress)
            assert made.data == tuple(compile_kernel(k, target) for k in kernels[:2])
        assert maker._workers is not None and maker._workers.count == 2


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_error_is_the_same_from_everywhere(
    monkeypatch: pytest.MonkeyPatch, kernels: list[Kernel], eager_pool: None, jobs: int
) -> None:
    """Of several the first kernel's, whoever finds it first."""
    real = codegen.cpu.to_llvm

    def broken(kernel: Kernel, target: Any) -> str:
        text = real(kernel, target)
        return text if kernel.name == "first" else text.replace("ret void", "ret nothing")

    monkeypatch.setattr(codegen.cpu, "to_llvm", broken)
    with pytest.raises(InternalError) as caught:
        objects([small("first"), *kernels[1:3]], ObjectCache(None), jobs)
    name = kernels[1].name
    message = str(caught.value)
    assert message.startswith(f"kernel {name} for x86-64-v3: llvm rejects the emitted code: ")
    assert "\n" not in message and "ret nothing" in message


# ---- workers ----


def ask(pool: Workers, text: str) -> bytes:
    return pool.submit(text, machine_of(X86), "kernel").result(timeout=60)


def living(pool: Workers) -> list[int]:
    return [p.pid for p in pool._processes if p.poll() is None]


def test_workers_end_with_their_block() -> None:
    with Workers(2) as pool:
        assert [pool.start(), pool.start(), pool.start()] == [True, True, False]
        assert ask(pool, to_llvm(small(), X86)) == compile_kernel(small(), X86)
        assert len(living(pool)) == 2
    assert living(pool) == []


def test_workers_end_at_once_where_something_fails() -> None:
    with pytest.raises(KeyboardInterrupt), Workers(1) as pool:
        pool.start()
        text = to_llvm(matmul_tile(12, 32, 16), X86)
        results = [pool.submit(text, machine_of(X86), "kernel") for _ in range(50)]
        raise KeyboardInterrupt
    assert living(pool) == []
    assert not results[-1].done() or results[-1].exception() is not None


def test_a_crash_is_told_from_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys, os\n"
        "sys.stdout.buffer.write(b'r' + bytes(4)); sys.stdout.buffer.flush()\n"
        "sys.stdin.buffer.read(9)\n"
        "sys.stderr.write('LLVM ERROR: out of registers'); sys.stderr.flush()\n"
        "os.abort()\n"
    )
    monkeypatch.setattr(workers, "_command", lambda: [sys.executable, "-c", script])
    with Workers(1) as pool:
        pool.start()
        with pytest.raises(CrashedError, match="llvm ended by: Aborted; LLVM ERROR: out of reg"):
            ask(pool, "")
    monkeypatch.setattr(codegen, "_POOL_BYTES", 1)
    message = "kernel k for x86-64-v3: llvm ended by: Aborted"
    with pytest.raises(InternalError, match=message):
        objects([small()], ObjectCache(None), 2)


@pytest.mark.parametrize(
    "command", [None, ["/no/such/python"], [sys.executable, "-c", "import sys; sys.exit(3)"]]
)
def test_where_no_worker_can_be_started_llvm_runs_here(
    monkeypatch: pytest.MonkeyPatch, kernels: list[Kernel], eager_pool: None, command: Any
) -> None:
    monkeypatch.setattr(workers, "_command", lambda: command)
    made = objects(kernels[:3], ObjectCache(None), 4)
    assert made.data == tuple(compile_kernel(k, X86) for k in kernels[:3])
    with pytest.raises(UnavailableError), Workers(1) as pool:
        pool.start()
        ask(pool, to_llvm(small(), X86))


def test_a_worker_needs_nothing_of_aot() -> None:
    """Its start is paid for by every cold compile."""
    script = (
        "import sys, runpy\n"
        f"runpy.run_path({llvm.__file__!r}, run_name='worker')\n"
        "print(*sorted(m for m in sys.modules if m.split('.')[0] in ('aot', 'numpy', 'llvmlite')))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == "\n"


def test_a_worker_answers_each_request_in_order() -> None:
    """What it reads and writes, with what this process makes of the same text."""
    kernel = small()
    text, machine = to_llvm(kernel, X86), machine_of(X86)
    asked = io.BytesIO()
    for given, of in (
        (text, machine),
        ("define", machine),
        (text, machine._replace(triple="z80-none")),
    ):
        llvm.send(asked, b"\0", llvm.request(given, of, FUNCTION_NAME))
    asked.seek(0)
    said = io.BytesIO()
    llvm.serve(asked, said)
    said.seek(0)
    frames = list(iter(lambda: llvm.receive(said), None))
    assert [kind for kind, _ in frames] == [llvm.READY, llvm.DONE, *[llvm.REJECTED] * 2]
    assert frames[1][1] == compile_kernel(kernel, X86)
    assert b"expected" in frames[2][1]
    assert frames[3][1].startswith(b"no machine for triple 'z80-none': ")
    assert llvm.receive(io.BytesIO(llvm._HEADER.pack(b"\0", 9) + b"cut")) is None


# ---- the whole compile ----


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder()
    x = b.input("x", "f32[N, 8]")
    b.output("y", b.op("softmax", b.op("tanh", x), axis=1))
    b.output("z", b.op("reduce_sum", x, axes=(1,)))
    path = tmp_path / "model.ir"
    path.write_text(print_module(b.module()))
    return path


def counts(module: aot.CompiledModule) -> list[tuple[int, int, int]]:
    return [
        (v["cache"]["hits"], v["cache"]["misses"], v["llvm_calls"])
        for v in module.stats["variants"]
    ]


def test_a_second_compile_calls_no_llvm(tmp_path: Path, model: Path, eager_pool: None) -> None:
    targets = ["x86-64-v3", "vulkan-1.1", "aarch64-generic"]
    options = {"targets": targets, "cache_dir": tmp_path / "cache"}
    cold = aot.compile(model, **options)  # type: ignore[arg-type]
    warm = aot.compile(model, **options)  # type: ignore[arg-type]
    bare = aot.compile(model, targets=targets, cache=False, jobs=1)
    assert cold.to_bytes() == warm.to_bytes() == bare.to_bytes()
    number = counts(cold)[0][1]
    assert number > 0
    assert counts(cold) == [(0, number, number), (0, 0, 0), (0, number, number)] == counts(bare)
    assert counts(warm) == [(number, 0, 0), (0, 0, 0), (number, 0, 0)]


def test_a_model_that_was_met_starts_no_process_early(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker starts beside the import of a model whose objects are probably not here."""
    started: list[str] = []
    start = Workers.start

    def counted(self: Workers) -> bool:
        started.append("")
        return start(self)

    monkeypatch.setattr(llvm, "is_loaded", lambda: False)
    monkeypatch.setattr(Workers, "start", counted)
    compiled, numbers = [], []
    for source in (model, model, model.read_bytes(), model.read_bytes()):
        started.clear()
        kept = {"cache_dir": tmp_path / "cache", "jobs": 2, "targets": ["x86-64-v3"]}
        compiled.append(aot.compile(source, **kept).to_bytes())  # type: ignore[arg-type]
        numbers.append(len(started))
    assert len(set(compiled)) == 1
    assert numbers[0] > 0 and numbers[1] == 0 and numbers[2] > 0 and numbers[3] == 0
    unread = {codegen._model_id(source) for source in (3, tmp_path / "none.ir", "a\0b")}
    assert unread == {None}


_FRESH = """
import sys, aot
module = aot.compile(sys.argv[1], targets=["host"])
print(sum(v["llvm_calls"] for v in module.stats["variants"]),
      *sorted(m for m in sys.modules if m.split(".")[0] in ("llvmlite", "onnx")))
"""


def test_a_warm_compile_does_not_load_llvm(tmp_path: Path, model: Path) -> None:
    """Nor ONNX, for a model that is no ONNX file."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AOT_CACHE_DIR": str(tmp_path / "c")}
    command = [sys.executable, "-c", _FRESH, str(model)]
    shown = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        for _ in range(2)
    ]
    assert int(shown[0].split()[0]) > 0
    assert shown[1] == "0\n"


def test_an_interrupted_compile_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group, workers included; they end by their parent's doing."""
    script = (
        "import os, sys, signal, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from aot.backends.cpu.workers import Workers\n"
        "with Workers(2) as pool:\n"
        "    pool.start(); pool.start()\n"
        "    print(*(p.pid for p in pool._processes), flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.count("KeyboardInterrupt") == 1, "the parent's own; workers say nothing"
    deadline = time.monotonic() + 60
    while any(_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(_exists(pid) for pid in pids)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
