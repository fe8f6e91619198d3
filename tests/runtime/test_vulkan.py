"""The runtime's Vulkan driver: transfers, parameter blocks, recordings, times, and what it refuses.

Programs are hand-written and checked against a few lines of Python; models are in
test_vulkan_runtime_models.py.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aot
from aot.builder import Builder
from aot.errors import RuntimeFailure
from aot.ir.types import DType
from aot.kernels.ir.nodes import Kernel
from aot.link.image import ArenaBuffer
from aot.link.module import module_bytes
from aot.link.program import decode
from aot.link.reader import read_module
from aot.runtime import vulkan_facts
from aot.tools.merging import merge
from tests.support import runtime_api, vulkan_case, vulkan_kernels, vulkan_runtime
from tests.support.growing_graph import growing_graph, growing_reference, rows
from tests.support.runtime_modules import ARENA, CONSTANTS, DTYPES, INPUTS, OUTPUTS, Assembler
from tests.support.vulkan_device import DRIVERS
from tests.support.vulkan_runtime import Tensor, info_of, module_of, running_on

pytestmark = pytest.mark.vulkan

MEMORY = ("unified", "staged")
CLASS_BYTES = {CONSTANTS: 40, ARENA: 96, INPUTS: 51, OUTPUTS: 77}
STORED = {"u8": 1, "i16": 2, "i32": 4, "i64": 8}


@pytest.fixture(params=[(d, m) for d in DRIVERS for m in MEMORY], ids="-".join)
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Each driver, with memory that the host shares and with copies to memory of its own."""
    driver, memory = request.param
    with running_on(driver, tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOT_VULKAN_MEMORY", memory)
        yield driver


@pytest.fixture
def lavapipe(tmp_path: Path) -> Iterator[Path]:
    """One driver, for what does not depend on it; gives the folder of its caches."""
    with running_on("lavapipe", tmp_path):
        yield tmp_path


def test_the_validation_layer_listens(tmp_path: Path) -> None:
    """A capability whose feature is not enabled."""
    if "VK_INSTANCE_LAYERS" not in vulkan_runtime.environment("lavapipe", tmp_path):
        pytest.skip("the validation layer is not installed")
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    words = variant.executables[0].spirv
    assert words is not None
    int8 = struct.pack("<II", 2 << 16 | 17, 39)  # OpCapability Int8
    wrong = replace(variant.executables[0], spirv=words[:20] + int8 + words[20:], texel_spirv=None)
    changed = replace(variant, executables=(wrong, *variant.executables[1:]))
    path = tmp_path / "wrong.aotm"
    path.write_bytes(module_bytes(replace(image, variants=(changed,))))
    # in a process of its own: a layer that another test has loaded keeps that one's settings
    variables = {**os.environ, **vulkan_runtime.environment("lavapipe", tmp_path)}
    arguments = [vulkan_runtime.tool_path(), path, "--device", "vulkan", "--random"]
    subprocess.run(list(map(str, arguments)), env=variables, check=False, capture_output=True)
    with pytest.raises(AssertionError, match=r"Capability \(Int8\)"):
        vulkan_runtime.assert_silent(tmp_path)


# ---- transfers ----


@dataclass(frozen=True)
class Step:
    """One instruction: "copy", "fill", "store", or "move", which loads an integer and stores it."""

    name: str
    to: int
    to_offset: int
    bytes: int
    source: int = 0
    source_offset: int = 0
    value: int = 0
    dtype: str = ""


@st.composite
def steps(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(("copy", "copy", "fill", "store", "move")))
    to = draw(st.sampled_from((ARENA, OUTPUTS)))
    source = draw(st.sampled_from(tuple(CLASS_BYTES)))
    dtype = draw(st.sampled_from(tuple(STORED))) if name in ("store", "move") else ""
    most = min(CLASS_BYTES[to], CLASS_BYTES[source])
    size = STORED[dtype] if dtype else draw(st.integers(1, most))
    return Step(
        name,
        to,
        draw(st.integers(0, CLASS_BYTES[to] - size)),
        size,
        source,
        draw(st.integers(0, CLASS_BYTES[source] - size)),
        draw(st.integers(0, (1 << 32) - 1)),
        dtype,
    )


RODATA = bytes(range(100, 100 + CLASS_BYTES[CONSTANTS]))


def program_of(program: list[Step]) -> bytes:
    """A module that zeroes arena and output, does the steps, and leaves the arena as output two."""
    asm = Assembler()
    asm.block()
    inside, first, second = asm.register(), asm.register(), asm.register()
    bases = {CONSTANTS: asm.register(0), ARENA: asm.register(0), INPUTS: inside, OUTPUTS: first}
    asm.emit("RETURN")
    asm.execute()

    def place(buffer_class: int, offset: int) -> int:
        return asm.binary("ADD", bases[buffer_class], asm.register(offset))

    for each in (ARENA, OUTPUTS):
        asm.emit("FILL", each, bases[each], asm.register(CLASS_BYTES[each]), 0)
    for step in program:
        to, size = place(step.to, step.to_offset), asm.register(step.bytes)
        source = place(step.source, step.source_offset)
        if step.name == "copy":
            asm.emit("COPY", step.to, to, step.source, source, size)
        elif step.name == "fill":
            asm.emit("FILL", step.to, to, size, step.value)
        else:
            value = asm.register(step.value)
            if step.name == "move":
                asm.emit("LOAD", value, step.source, source, DTYPES[step.dtype])
            asm.emit("STORE", step.to, to, value, DTYPES[step.dtype])
    asm.emit("COPY", OUTPUTS, second, ARENA, bases[ARENA], asm.register(CLASS_BYTES[ARENA]))
    asm.emit("RETURN")
    return module_of(
        asm,
        [Tensor("x", DType.U8, (CLASS_BYTES[INPUTS],))],
        [
            Tensor("y", DType.U8, (CLASS_BYTES[OUTPUTS],)),
            Tensor("arena", DType.U8, (CLASS_BYTES[ARENA],)),
        ],
        rodata=RODATA,
        registers={"inputs": [inside], "outputs": [first, second]},
        arena_bytes=CLASS_BYTES[ARENA],
    )


def expected_of(program: list[Step], x: bytes) -> dict[str, bytes]:
    memory = {c: bytearray(n) for c, n in CLASS_BYTES.items()}
    memory[CONSTANTS][:], memory[INPUTS][:] = RODATA, x
    for step in program:
        source = bytes(memory[step.source][step.source_offset :][: step.bytes])
        value = struct.pack("<Q", step.value)[: step.bytes]
        pattern = (struct.pack("<I", step.value) * (step.bytes // 4 + 1))[: step.bytes]
        data = {"copy": source, "move": source, "fill": pattern, "store": value}[step.name]
        memory[step.to][step.to_offset : step.to_offset + step.bytes] = data
    return {"y": bytes(memory[OUTPUTS]), "arena": bytes(memory[ARENA])}


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(steps(), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_transfers_do_what_the_program_says(device: str, program: list[Step], random: Any) -> None:
    with aot.load(program_of(program), "vulkan") as loaded:
        for _ in range(2):  # recorded, and recorded before
            x = random.randbytes(CLASS_BYTES[INPUTS])
            outputs = loaded({"x": np.frombuffer(x, np.uint8)})
            found = {name: array.tobytes() for name, array in outputs.items()}
            assert found == expected_of(program, x)


def test_a_copy_may_overlap_itself(device: str) -> None:
    program = [
        Step("copy", ARENA, 0, 40, CONSTANTS, 0),
        Step("copy", ARENA, 3, 30, ARENA, 0),
        Step("copy", ARENA, 1, 20, ARENA, 12),
        Step("copy", ARENA, 5, 5, ARENA, 5),
    ]
    with aot.load(program_of(program), "vulkan") as loaded:
        x = bytes(CLASS_BYTES[INPUTS])
        outputs = loaded({"x": np.frombuffer(x, np.uint8)})
        assert outputs["arena"].tobytes() == expected_of(program, x)["arena"]


def test_copies_that_overlap_themselves_count_as_their_pieces(device: str) -> None:
    """Each is a command for each distance that it moves: many, of few bytes."""
    x = np.zeros(CLASS_BYTES[INPUTS], np.uint8)
    for distance, is_refused in ((20, False), (1, True)):
        data = program_of([Step("copy", ARENA, distance, 40, ARENA, 0)])
        with runtime_api.opened(data, device=2, work_budget=40) as program:
            program.set_input(0, x)
            if is_refused:
                assert runtime_api.failure(program.run).status == "budget"
            else:
                program.run()


# ---- dispatches ----


def case_module(case: vulkan_case.Case, dispatches: int = 1) -> bytes:
    """A kernel's program: its buffers are whole inputs, outputs and constants."""
    kernel = case.kernel
    asm = Assembler()
    asm.block()
    offsets = {b: asm.register() for b in kernel.buffers}
    rodata = bytearray()
    inputs, outputs, registers = [], [], {"inputs": [], "outputs": []}
    for buffer in kernel.buffers:
        array = case.expected[buffer.name] if buffer.is_written else case.arrays[buffer.name]
        kind = buffer.binding.name.lower()
        if kind == "constants":
            rodata += bytes(-len(rodata) % 64)
            asm.const(offsets[buffer], len(rodata))
            rodata += array.tobytes()
            continue
        assert kind in registers, kind
        made = Tensor(buffer.name, buffer.dtype, array.shape)
        (outputs if kind == "outputs" else inputs).append(made)
        registers[kind].append(offsets[buffer])
    params = parameters(case, asm, offsets)
    asm.emit("RETURN")
    asm.execute()
    grid = [asm.register(int(d)) for d in grid_of(kernel, case)]
    for _ in range(dispatches):
        asm.emit("DISPATCH", 0, *grid, *params)
    asm.emit("RETURN")
    return module_of(asm, inputs, outputs, [kernel], rodata=bytes(rodata), registers=registers)


def parameters(case: vulkan_case.Case, asm: Assembler, offsets: dict[Any, int]) -> list[int]:
    """A register for each word of the kernel's parameter block."""
    by_name = {b.offset.name: offsets[b] for b in case.kernel.buffers}
    found = []
    for param in case.kernel.params:
        if param.name in by_name:
            found.append(by_name[param.name])
        elif param.dtype.is_float:
            bits = np.array(case.params[param.name], param.dtype.numpy).tobytes()
            found.append(asm.register(int.from_bytes(bits, "little")))
        else:
            found.append(asm.register(int(case.params[param.name])))
    return found


def grid_of(kernel: Kernel, case: vulkan_case.Case) -> list[int]:
    from aot.ir.dims import evaluate

    dims = {k: int(v) for k, v in case.params.items() if float(v).is_integer()}
    return [evaluate(d, dims) for d in kernel.grid]


def check_case(case: vulkan_case.Case, dispatches: int = 1) -> vulkan_runtime.Info:
    with aot.load(case_module(case, dispatches), "vulkan") as program:
        outputs = program({t.name: case.arrays[t.name] for t in program.inputs})
        for name, wanted in case.expected.items():
            values = wanted.astype(np.float64)
            scale = max(float(np.abs(values[np.isfinite(values)]).max(initial=0)), 1e-30)
            error = np.nan_to_num(outputs[name].astype(np.float64)) - np.nan_to_num(values)
            assert float(np.abs(error).max()) <= case.tolerance * scale, name
        return info_of(program)


@pytest.mark.parametrize("name", ["elementwise", "matmul", "softmax", "gather", "boundary_types"])
def test_kernels(device: str, name: str) -> None:
    check_case(getattr(vulkan_kernels, name)())


def test_parameter_blocks_fill_several_windows(device: str) -> None:
    """50 words are no push constants; 16 KiB of the uniform buffer hold 78 such blocks."""
    check_case(vulkan_kernels.many_params(), dispatches=200)


def test_long_grids_run_in_rows(device: str) -> None:
    check_case(vulkan_kernels.long_grid())


def test_too_many_workgroups_name_the_limit(lavapipe: Path) -> None:
    case = vulkan_kernels.elementwise()
    image = read_module(case_module(case))
    for axis in (1, 2):
        code = list(image.variants[0].entry_points[0].program.code)
        at = image_dispatch(code)
        code[at + 2 + axis] = many(code)
        with aot.load(with_code(image, code), "vulkan") as program:
            feeds = {t.name: case.arrays[t.name] for t in program.inputs}
            with pytest.raises(RuntimeFailure) as caught:
                program(feeds)
            assert caught.match(f'"elementwise": more .*maxComputeWorkGroupCount\\[{axis}\\]')
            assert caught.value.status == "unsupported"


def image_dispatch(code: list[int]) -> int:
    """Where the first DISPATCH stands."""
    return next(i.at for i in decode(code) if i.name == "DISPATCH")


def many(code: list[int]) -> int:
    """A register that holds a number above every device's grid: one that prepare sets, changed."""
    found = next(i for i in decode(code) if i.name == "CONST" and i.operands[1] == 1000)
    code[found.at + 2] = 1 << 30
    return found.operands[0]


def with_code(image: Any, code: list[int]) -> bytes:
    (variant,) = image.variants
    (entry,) = variant.entry_points
    program = replace(entry.program, code=tuple(code))
    changed = replace(variant, entry_points=(replace(entry, program=program),))
    return module_bytes(replace(image, variants=(changed,)))


# ---- recordings ----


def test_a_run_is_recorded_once_for_each_shape(device: str) -> None:
    module = aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()
    with aot.load(module, "vulkan") as program:
        uploads = info_of(program).submit_count
        for number, count in enumerate([5, 3, 5, 3, 5, 5, 3]):  # the largest first
            x = rows(count, number)
            np.testing.assert_allclose(program({"x": x})["y"], growing_reference(x), atol=1e-6)
        info = info_of(program)
        assert (info.recording_count, info.submit_count - uploads) == (2, 7)
        x = rows(200)  # new buffers: what was recorded is worth nothing
        np.testing.assert_allclose(program({"x": x})["y"], growing_reference(x), atol=1e-6)
        np.testing.assert_allclose(program({"x": x[:5]})["y"], growing_reference(x[:5]), atol=1e-6)
        assert info_of(program).recording_count == 4


def test_more_shapes_than_recordings_are_kept(lavapipe: Path) -> None:
    module = aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()
    with aot.load(module, "vulkan") as program:
        for count in [*range(20, 0, -1), *range(20, 0, -1)]:
            x = rows(count)
            np.testing.assert_allclose(program({"x": x})["y"], growing_reference(x), atol=1e-6)
        assert info_of(program).recording_count == 40  # 16 are kept, and none came back in time


def test_a_run_that_was_recorded_allocates_nothing(device: str) -> None:
    module = aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()
    allocator = runtime_api.CountingAllocator()
    opened = runtime_api.Module(module, allocator)
    program = runtime_api.Program(opened, device=2)
    for count in (9, 4, 9):
        program.set_input(0, rows(count))
        runtime_api.call("aot_program_run", program.handle)
    before = allocator.calls
    for count in (4, 9):
        program.set_input(0, rows(count))
        runtime_api.call("aot_program_run", program.handle)
    assert allocator.calls == before
    program.close()
    opened.close()
    assert not allocator.live
    assert not allocator.errors


def looping_module() -> bytes:
    """y = n, counted in memory by a loop of n trips: a store, a fill and two copies each."""
    asm = Assembler()
    asm.block()
    offset_in, offset_out = asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    n, i, one = asm.register(), asm.register(0), asm.register(1)
    places = [asm.register(8 * k) for k in range(3)]
    eight = places[1]
    asm.emit("LOAD", n, INPUTS, offset_in, DTYPES["i64"])
    asm.emit("JUMP", 2)
    asm.block()  # 2
    asm.emit("BRANCH", asm.binary("LT", i, n), 3, 4)
    asm.block()  # 3
    asm.emit("ADD", i, i, one)
    asm.emit("STORE", ARENA, places[0], i, DTYPES["i64"])
    asm.emit("COPY", ARENA, places[1], ARENA, places[0], eight)
    asm.emit("FILL", ARENA, places[0], eight, 0)
    asm.emit("COPY", ARENA, places[2], ARENA, places[1], eight)
    asm.emit("JUMP", 2)
    asm.block()  # 4
    asm.emit("COPY", OUTPUTS, offset_out, ARENA, places[2], eight)
    asm.emit("RETURN")
    return module_of(
        asm,
        [Tensor("n", DType.I64, ())],
        [Tensor("y", DType.I64, ())],
        registers={"inputs": [offset_in], "outputs": [offset_out]},
        arena_bytes=64,
    )


@pytest.mark.parametrize("is_timed", [False, True])
def test_trips_of_a_loop_take_no_more_memory(is_timed: bool, lavapipe: Path) -> None:
    """What they do is submitted when there is much of it: 2^16 words, of 31 a trip."""
    launches: list[int] = []
    opened = runtime_api.Module(looping_module())
    function = vulkan_runtime.Profile(lambda user, launch: launches.append(launch.contents.word))
    address = ctypes.cast(function, ctypes.c_void_p).value if is_timed else None
    program = runtime_api.Program(opened, device=2, profile=address)
    for n, submissions in ((3, 1), (2000, 1), (5000, 3), (3, 1)):
        launches.clear()
        before = vulkan_facts.info_of(vulkan_runtime.library(), program.handle)
        (found,) = program(np.array(n, np.int64))
        after = vulkan_facts.info_of(vulkan_runtime.library(), program.handle)
        assert found == n
        assert before is not None and after is not None
        assert after.submit_count - before.submit_count == submissions
        assert len(launches) == (3 * n + 1 if is_timed else 0)
    program.close()
    opened.close()


def test_every_allocation_may_fail(lavapipe: Path) -> None:
    """A status each time, and nothing is left behind."""
    module = aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()

    def attempt(allocator: runtime_api.CountingAllocator) -> None:
        opened = runtime_api.Module(module, allocator)
        try:
            program = runtime_api.Program(opened, device=2)
            try:
                program.set_input(0, rows(4))
                runtime_api.call("aot_program_run", program.handle)
            finally:
                program.close()
        finally:
            opened.close()

    counter = runtime_api.CountingAllocator()
    attempt(counter)
    failures = 0
    for number in range(counter.calls):
        allocator = runtime_api.CountingAllocator(fail_at=number)
        try:
            attempt(allocator)
        except runtime_api.Failed as failed:
            assert "out of memory" in failed.message
            failures += 1
        assert not allocator.live
        assert not allocator.errors
    # The cache is done without where there is no memory for it.
    assert failures >= counter.calls - 4


def test_state_stays_when_the_arena_grows(device: str) -> None:
    """A counter in the arena's kept head, and a buffer behind it that grows with N."""
    asm = Assembler()
    asm.block()
    offset_in, offset_out, n = asm.register(), asm.register(), asm.register()
    asm.emit("INPUT_DIM", n, 0, 0)
    asm.emit("OUTPUT_DIM", 0, 0, n)
    behind, eight = asm.register(), asm.register(8)
    asm.emit("BUFFER", 0, n)
    asm.emit("RETURN")
    asm.execute()
    zero, count = asm.register(0), asm.register()
    asm.emit("LOAD", count, ARENA, zero, DTYPES["i64"])
    asm.emit("STORE", ARENA, zero, asm.binary("ADD", count, asm.register(1)), DTYPES["i64"])
    asm.emit("COPY", ARENA, behind, INPUTS, offset_in, n)
    asm.emit("COPY", OUTPUTS, offset_out, ARENA, behind, n)
    asm.emit("COPY", OUTPUTS, offset_out, ARENA, zero, eight)
    asm.emit("RETURN")
    module = module_of(
        asm,
        [Tensor("x", DType.U8, ("N",))],
        [Tensor("y", DType.U8, ("N",))],
        registers={"inputs": [offset_in], "outputs": [offset_out]},
        buffers=(ArenaBuffer(0, 1, behind),),
        arena_bytes=64,
        state_bytes=8,
    )
    with aot.load(module, "vulkan") as program:
        for number, size in enumerate([16, 300, 20, 5000, 100_000], 1):
            x = np.arange(size).astype(np.uint8)
            y = program({"x": x})["y"]
            assert int.from_bytes(y[:8].tobytes(), "little") == number
            assert np.array_equal(y[8:], x[8:])
        program.reset()
        assert program({"x": np.zeros(16, np.uint8)})["y"][0] == 1


# ---- times ----


@pytest.mark.parametrize("clock", ["timestamps", "host"])
def test_launches_are_timed(device: str, clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOT_VULKAN_TIMESTAMPS", "1" if clock == "timestamps" else "0")
    module = aot.compile(growing_graph(), targets=["vulkan-1.1"], disable=["fusion"]).to_bytes()
    dispatches = len(read_dispatches(module))
    launches = vulkan_runtime.launches_of(module, [rows(60)])
    assert len(launches) == dispatches > 2
    assert all(0 < launch.duration_ns < 10**10 for launch in launches)
    starts = [launch.start_ns for launch in launches]
    assert starts == sorted(starts)
    names = {e.name for e in read_module(module).variants[0].executables}
    assert {launch.name.decode() for launch in launches} == names
    assert len({launch.word for launch in launches}) == dispatches


def read_dispatches(module: bytes) -> list[Any]:
    (entry,) = read_module(module).variants[0].entry_points
    return [i for i in decode(entry.program.code) if i.name == "DISPATCH"]


# ---- what is refused ----


def test_limits_that_a_device_lacks_are_named(device: str) -> None:
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    for changes, message in (
        ({"limits": (("maxComputeWorkGroupInvocations", 1 << 20),)},
         "maxComputeWorkGroupInvocations is .*, the variant needs 1048576"),
        ({"limits": (("maxComputeWorkGroupSize[1]", 1 << 20),)},
         "maxComputeWorkGroupSize\\[1\\] is .*, the variant needs 1048576"),
        ({"limits": (("maxSomething", 1),)},
         "needs the limit maxSomething, which this runtime doesn't know"),
        ({"features": ("shaderSomething",)},
         "needs the feature shaderSomething, which this runtime doesn't know"),
        ({"features": ("cooperativeMatrix",)},
         "there is no cooperativeMatrix, which the variant needs"),
    ):  # fmt: skip
        changed = replace(image, variants=(replace(variant, **changes),))
        with pytest.raises(RuntimeFailure, match=message) as caught:
            aot.load(module_bytes(changed), "vulkan")
        assert caught.value.status == "unsupported"


@pytest.mark.parametrize("driver", DRIVERS)
def test_features_are_probed_and_enabled(driver: str, tmp_path: Path) -> None:
    """SwiftShader has none of these, lavapipe all; "subgroupArithmetic" both."""
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    names = ("shaderFloat16", "shaderInt8", "shaderInt64", "storageBuffer16BitAccess")
    with running_on(driver, tmp_path):
        for wanted in (*((n,) for n in names), names, ("subgroupArithmetic",)):
            changed = replace(image, variants=(replace(variant, features=wanted),))
            if driver == "lavapipe" or wanted == ("subgroupArithmetic",):
                with aot.load(module_bytes(changed), "vulkan") as program:
                    assert program({"x": rows(3)})["y"].shape == (3, 40)
                continue
            with pytest.raises(RuntimeFailure, match=f"there is no {wanted[0]}, which the variant"):
                aot.load(module_bytes(changed), "vulkan")


def test_no_loader_no_driver_no_such_device(
    lavapipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()

    def message() -> str:
        with pytest.raises(RuntimeFailure) as caught:
            aot.load(module, "vulkan")
        assert caught.value.status == "unsupported"
        return str(caught.value)

    with monkeypatch.context() as patch:
        patch.setenv("AOT_VULKAN_LIBRARY", "/nonexistent/libvulkan.so")
        assert message().endswith("vulkan-1.1: vulkan: cannot load /nonexistent/libvulkan.so")
        patch.setenv("AOT_VULKAN_LIBRARY", "libm.so.6")
        assert message().endswith("vulkan: the driver has no vkGetInstanceProcAddr")
    with monkeypatch.context() as patch:
        patch.setenv("VK_DRIVER_FILES", "/nonexistent.json")
        patch.setenv("VK_ICD_FILENAMES", "/nonexistent.json")
        assert message().endswith("vulkan: no driver starts (VK_LOADER_DEBUG=error says why)")
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "Voodoo")
    assert 'not the device "Voodoo" that is wanted' in message()


def test_large_constants_name_the_limit(lavapipe: Path) -> None:
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    large = replace(image, rodata=image.rodata + bytes(1 << 27), rodata_segments=())
    with pytest.raises(
        RuntimeFailure, match="constants of .* above llvmpipe.*maxStorageBufferRange"
    ):
        aot.load(module_bytes(large), "vulkan")


# ---- one file, several devices ----


def test_auto_takes_the_cpu_where_buffers_are_too_large(
    lavapipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was refused, and the CPU's variant never tried."""
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "LLVMpipe")
    for height, wanted in ((5000, "vulkan"), (7000, "cpu")):
        b = Builder()
        x = b.input("x", f"f32[{height}, 5000]")
        b.output("y", b.op("reduce_sum", b.op("softmax", x, axis=1), axes=(0,), keepdims=False))
        module = aot.compile(b.module(), targets=["vulkan-1.1", "host"]).to_bytes()
        with aot.load(module, "auto") as program:
            assert program.device == wanted
            is_told = f"maxStorageBufferRange is {1 << 27}, the variant needs" in program.skipped
            assert is_told == (wanted == "cpu")


def test_auto_takes_no_driver_in_software(lavapipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"]).to_bytes()
    x = rows(7)
    for device, wanted in (("auto", "cpu"), ("vulkan", "vulkan"), ("cpu", "cpu")):
        with aot.load(module, device) as program:
            assert program.device == wanted
            np.testing.assert_allclose(program({"x": x})["y"], growing_reference(x), atol=1e-6)
            skips = device == "auto"
            assert ("a driver in software" in program.skipped) == skips
            assert program.skipped.startswith("vulkan-1.1: vulkan: llvmpipe") == skips
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "LLVMpipe")
    with aot.load(module, "auto") as program:
        assert (program.device, program.skipped) == ("vulkan", "")
    monkeypatch.setenv("AOT_VULKAN_LIBRARY", "/nonexistent")
    with aot.load(module, "auto") as program:
        assert program.device == "cpu"
        assert program.skipped == "vulkan-1.1: vulkan: cannot load /nonexistent"
    with pytest.raises(RuntimeFailure, match="no variant runs on this machine: vulkan-1.1: vulkan"):
        aot.load(module, "vulkan")


# ---- pipelines ----


@pytest.mark.parametrize("creation", ["serial", "batch", "parallel"])
def test_one_pipeline_for_each_shader(
    device: str, creation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_PIPELINES", creation)
    compiled = aot.compile(growing_graph(), targets=["vulkan-1.1"], disable=["fusion"])
    emitted = compiled.stats["variants"][0]["executables"]["emitted"]["kept"]
    with aot.load(compiled.to_bytes(), "vulkan") as program:
        pipelines = vulkan_runtime.pipelines_of(program)
        assert len(pipelines) == emitted == info_of(program).pipeline_count
        assert all(p.words > 100 for p in pipelines)
        assert all((p.create_ns > 0) == (creation != "batch") for p in pipelines)
        assert program({"x": rows(3)})["y"].shape == (3, 40)


def test_executables_with_equal_words_share_a_pipeline(lavapipe: Path) -> None:
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    twice = replace(variant, executables=(*variant.executables, *variant.executables))
    with aot.load(module_bytes(replace(image, variants=(twice,))), "vulkan") as program:
        assert info_of(program).pipeline_count == len(variant.executables)


def test_a_program_has_the_pipelines_of_its_own_entry_point(device: str) -> None:
    small = Builder()
    small.output("y", small.op("tanh", small.input("x", "f32[N, 24]")))
    modules, counts = {}, {}
    for name, source in (("whole", growing_graph()), ("small", small.module())):
        modules[name] = aot.compile(source, targets=["vulkan-1.1"], entry_name=name)
        counts[name] = len(read_module(modules[name].to_bytes()).variants[0].executables)
    merged = merge(modules).to_bytes()
    assert len(read_module(merged).variants[0].executables) == sum(counts.values())
    for name, count in counts.items():
        with (
            aot.load(modules[name].to_bytes(), "vulkan") as alone,
            aot.load(merged, "vulkan", entry=name) as program,
        ):
            assert info_of(program).pipeline_count == count
            assert program({"x": rows(3)})["y"].tobytes() == alone({"x": rows(3)})["y"].tobytes()
    with pytest.raises(RuntimeFailure, match='no entry point "none", variant "vulkan-1.1" has '):
        aot.load(merged, "vulkan", entry="none")


@pytest.mark.parametrize(("texels", "number"), [("off", 0), ("on", 1)])
def test_a_damaged_shader_is_found(
    texels: str, number: int, lavapipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_TEXELS", texels)
    data = bytearray(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    words = read_module(bytes(data)).variants[0].executables[0].shaders[number]
    data[bytes(data).index(words) + len(words) // 2] ^= 1
    with pytest.raises(RuntimeFailure, match="the checksum of shader"):
        aot.load(bytes(data), "vulkan")
