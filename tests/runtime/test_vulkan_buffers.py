"""Inputs and outputs in buffers of the application's own Vulkan device: runs on them, beside the
host's memory and with parts on the CPU, and each misuse that aot/vulkan_buffers.h names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import aot
from aot.ir.types import DType
from tests.support import runtime_api, vulkan_runtime
from tests.support.growing_graph import growing_graph, growing_reference, rows
from tests.support.runtime_modules import INPUTS, OUTPUTS, Assembler
from tests.support.vulkan_buffers import Application, Buffer, OwnDevice, declare, shape_of
from tests.support.vulkan_faults import shim_path
from tests.support.vulkan_runtime import Tensor, module_of, running_on

pytestmark = pytest.mark.vulkan

DEVICE_LOST = -4
PLACES = {"unified": False, "staged": False, "incoherent": True, "staged-incoherent": True}


@pytest.fixture(params=PLACES)
def shim(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """A loader whose calls can fail, with memory of each kind."""
    faults = ctypes.CDLL(str(shim_path()))
    faults.faults_set(b"", 0, 0)
    memory = "staged" if request.param.startswith("staged") else "unified"
    monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
    with running_on("lavapipe", tmp_path):
        declare()
        yield faults
    faults.faults_set(b"", 0, 0)
    faults.faults_incoherent(False)


@pytest.fixture
def application(shim: ctypes.CDLL, request: pytest.FixtureRequest) -> Iterator[Application]:
    """An application whose own memory is coherent, whatever the runtime's is."""
    made = Application(shim)
    shim.faults_incoherent(PLACES[request.node.callspec.params["shim"]])
    yield made
    shim.faults_incoherent(False)
    made.close()


def program_on(application: Application, data: bytes, **options: object) -> runtime_api.Program:
    """A program on the application's device."""
    module = runtime_api.Module(data)
    vulkan = application.options()
    address = ctypes.cast(ctypes.pointer(vulkan), ctypes.c_void_p).value
    program = runtime_api.Program(module, **{"device": 2, "vulkan": address, **options})
    module.close()
    return program


def growing() -> bytes:
    return aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()


def set_input(program: runtime_api.Program, index: int, array: np.ndarray, buffer: Buffer) -> None:
    tensor, _ = shape_of(array)
    name = "aot_vulkan_set_input_buffer"
    runtime_api.call(name, program.handle, index, byref(tensor), byref(buffer))


def set_output(program: runtime_api.Program, index: int, buffer: Buffer) -> None:
    runtime_api.call("aot_vulkan_set_output_buffer", program.handle, index, byref(buffer))


def written(buffer: np.ndarray, offset: int, array: np.ndarray) -> None:
    """Puts the array's bytes into a buffer."""
    buffer[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)


def test_runs_in_buffers(shim: ctypes.CDLL, application: Application) -> None:
    """Runs of several shapes read and write buffers at any byte, and nothing beside the output."""
    program = program_on(application, growing())
    handle, memory = application.buffer(8192)
    to, result = application.buffer(8192)
    for count, begin, end in ((9, 0, 0), (30, 100, 65), (9, 100, 65), (1, 4, 2048)):
        x = rows(count)
        written(memory, begin, x)
        result[:] = 0xEE
        set_input(program, 0, x, Buffer(buffer=handle, bytes=8192, offset=begin))
        set_output(program, 0, Buffer(buffer=to, bytes=8192, offset=end))
        program.run()
        expected = growing_reference(x)
        found = result[end : end + expected.nbytes].copy().view(np.float32)
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-6)
        assert (result[:end] == 0xEE).all() and (result[end + expected.nbytes :] == 0xEE).all()
        assert program.output_shape(0) == expected.shape
    made = vulkan_runtime.vulkan_facts.info_of(vulkan_runtime.library(), program.handle)
    assert made is not None and made.recording_count == 4  # each set is recorded
    program.run()
    assert made.recording_count == 4
    program.close()
    assert application.locks() >= 5


def test_beside_the_hosts_memory(application: Application) -> None:
    program = program_on(application, growing())
    handle, memory = application.buffer(4096)
    x = rows(9)
    expected = growing_reference(x)
    program.set_input(0, x)
    set_output(program, 0, Buffer(buffer=handle, bytes=4096, offset=0))
    program.run()
    found = memory[: expected.nbytes].copy().view(np.float32).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    written(memory, 8, x)
    set_input(program, 0, x, Buffer(buffer=handle, bytes=4096, offset=8))
    program.set_output(0, None)
    program.run()
    np.testing.assert_allclose(program.output(0), growing_reference(x), atol=1e-6)
    program.close()


def test_several_of_one_buffer(application: Application) -> None:
    """A program of two inputs and two outputs, one of each in the buffer."""
    b = aot.builder.Builder()
    x, y = b.input("x", "f32[8]"), b.input("y", "f32[8]")
    b.output("sum", b.op("add", x, y))
    b.output("product", b.op("mul", x, y))
    data = aot.compile(b.module(), targets=["vulkan-1.1"]).to_bytes()
    program = program_on(application, data)
    handle, memory = application.buffer(256)
    x_values, y_values = (np.arange(8, dtype=np.float32) + n for n in (1, 5))
    written(memory, 64, y_values)
    program.set_input(0, x_values)
    set_input(program, 1, y_values, Buffer(buffer=handle, bytes=256, offset=64))
    set_output(program, 0, Buffer(buffer=handle, bytes=256, offset=96))
    program.run()
    np.testing.assert_array_equal(memory[96:128].view(np.float32), x_values + y_values)
    np.testing.assert_array_equal(program.output(1), x_values * y_values)
    # The outputs and inputs in a buffer share no byte.
    for offset, other in ((68, 'input "y"'), (40, 'input "y"')):
        set_output(program, 0, Buffer(buffer=handle, bytes=256, offset=offset))
        found = runtime_api.failure(program.run)
        assert found.status == "argument" and other in found.message
    set_output(program, 0, Buffer(buffer=handle, bytes=256, offset=128))
    set_output(program, 1, Buffer(buffer=handle, bytes=256, offset=144))
    found = runtime_api.failure(program.run)
    assert (found.status, found.message) == (
        "argument",
        'output "product" overlaps output "sum" in memory',
    )
    program.close()


def hosted() -> bytes:
    """y = relu(x) + the sums of its rows in f64, which the CPU computes."""
    b = aot.builder.Builder()
    x = b.input("x", "f32[N, 24]")
    sums = b.op("reduce_sum", b.op("cast", x, to="f64"), axes=[1], keepdims=True)
    b.output("y", b.op("add", b.op("relu", x), b.op("cast", sums, to="f32")))
    return aot.compile(b.module(), targets=["vulkan-1.1", "host"]).to_bytes()


def test_with_a_part_on_the_cpu(application: Application) -> None:
    """It reads inputs where they are in buffers, and writes outputs there."""
    program = program_on(application, hosted())
    handle, memory = application.buffer(4096)
    to, result = application.buffer(4096)
    for count in (3, 20, 3):
        x = np.random.default_rng(count).standard_normal((count, 24)).astype(np.float32)
        written(memory, 16, x)
        set_input(program, 0, x, Buffer(buffer=handle, bytes=4096, offset=16))
        set_output(program, 0, Buffer(buffer=to, bytes=4096, offset=32))
        program.run()
        expected = np.maximum(x, 0) + x.astype(np.float64).sum(1, keepdims=True)
        found = result[32 : 32 + 96 * count].copy().view(np.float32).reshape(count, 24)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    program.close()


def test_values_that_a_program_reads(application: Application) -> None:
    """What decides how a run goes on is read from the buffer, not from the host's memory."""
    asm = Assembler()
    asm.block()
    x, y = asm.register(), asm.register()
    asm.emit("RETURN")
    asm.execute()
    value = asm.register()
    asm.emit("LOAD", value, INPUTS, x, 5)  # i32
    asm.emit("STORE", OUTPUTS, y, asm.binary("ADD", value, value), 5)
    asm.emit("RETURN")
    data = module_of(
        asm,
        [Tensor("x", DType.I32, (1,))],
        [Tensor("y", DType.I32, (1,))],
        registers={"inputs": [x], "outputs": [y]},
    )
    program = program_on(application, data)
    handle, memory = application.buffer(64)
    for number in (21, -4):
        memory[8:12].view(np.int32)[0] = number
        set_input(program, 0, np.zeros(1, np.int32), Buffer(buffer=handle, bytes=64, offset=8))
        set_output(program, 0, Buffer(buffer=handle, bytes=64, offset=40))
        program.run()
        assert memory[40:44].view(np.int32)[0] == 2 * number
    program.close()


MISUSES = {
    "a size that is none": ({"size": 0}, "argument"),
    "no buffer": ({"buffer": 0}, "argument"),
    "an element behind the end": ({"offset": 4096 - 9 * 96 + 4}, "capacity"),
    "an offset behind the end": ({"offset": 4097}, "capacity"),
    "an offset that overflows": ({"offset": 2**64 - 4}, "capacity"),
}


@pytest.mark.parametrize("shim", ["unified"], indirect=True)
def test_misuse_gives_a_status(application: Application) -> None:
    """And the program runs on as it was."""
    program = program_on(application, growing())
    handle, memory = application.buffer(4096)
    x = rows(9)
    written(memory, 0, x)
    good = Buffer(buffer=handle, bytes=4096, offset=0)
    set_input(program, 0, x, good)
    fields = {"buffer": handle, "bytes": 4096, "offset": 0}
    for name, (changed, status) in MISUSES.items():
        wrong = Buffer(**fields)
        for field, value in changed.items():
            setattr(wrong, field, value)
        found = runtime_api.failure(partial(set_input, program, 0, x, wrong))
        assert found.status == status, name
        if status == "capacity" and changed["offset"] <= 4096:
            continue  # there is room for an output, of another size
        found = runtime_api.failure(partial(set_output, program, 0, wrong))
        assert found.status == "argument", name
    wrong_arrays = {"dtype": x.astype(np.float64), "shape": rows(9)[:, :3]}
    for status, array in wrong_arrays.items():
        found = runtime_api.failure(partial(set_input, program, 0, array, good))
        assert found.status == status
    for index in (1, 2**40):
        assert runtime_api.failure(partial(set_input, program, index, x, good)).status == "argument"
        assert runtime_api.failure(partial(set_output, program, index, good)).status == "argument"
    tensor, _ = shape_of(x)
    tensor.data = x.ctypes.data
    name = "aot_vulkan_set_input_buffer"
    arguments = (program.handle, 0, byref(tensor), byref(good))
    found = runtime_api.failure(lambda: runtime_api.call(name, *arguments))
    assert (found.status, found.message) == (
        "argument",
        'input "x": data is set, beside a buffer of the device',
    )
    set_output(program, 0, Buffer(buffer=handle, bytes=4096, offset=4096 - 4))
    assert runtime_api.failure(program.run).status == "capacity"
    program.set_output(0, None)
    program.run()
    np.testing.assert_allclose(program.output(0), growing_reference(x), atol=1e-6)
    program.close()


@pytest.mark.parametrize("shim", ["unified"], indirect=True)
def test_a_program_elsewhere_has_no_such_buffers(application: Application) -> None:
    data = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"]).to_bytes()
    handle, _ = application.buffer(4096)
    good = Buffer(buffer=handle, bytes=4096, offset=0)
    module = runtime_api.Module(data)
    for device, status in ((1, "unsupported"), (2, "argument")):
        program = runtime_api.Program(module, device=device)
        found = runtime_api.failure(partial(set_input, program, 0, rows(9), good))
        assert found.status == status
        assert runtime_api.failure(partial(set_output, program, 0, good)).status == status
        program.close()
    module.close()


@pytest.mark.parametrize("shim", ["unified"], indirect=True)
def test_an_input_that_is_written_is_the_hosts(application: Application) -> None:
    b = aot.builder.Builder()
    x = b.input("x", "f32[4]")
    b.output("y", b.op("add", x, x))
    data = aot.compile(b.module(), targets=["vulkan-1.1"]).to_bytes()
    image = vulkan_runtime.read_module(data)
    (variant,) = image.variants
    (entry,) = variant.entry_points
    made = vulkan_runtime.replace(entry.program, updates=(1,))
    entries = (vulkan_runtime.replace(entry, program=made),)
    variants = (vulkan_runtime.replace(variant, entry_points=entries),)
    updating = vulkan_runtime.module_bytes(vulkan_runtime.replace(image, variants=variants))
    program = program_on(application, updating)
    handle, _ = application.buffer(64)
    good = Buffer(buffer=handle, bytes=64, offset=0)
    for call in (
        partial(set_input, program, 0, np.zeros(4, np.float32), good),
        partial(set_output, program, 0, good),
    ):
        found = runtime_api.failure(call)
        assert found.status == "argument" and "in place" in found.message
    program.close()


@pytest.mark.parametrize("shim", ["unified"], indirect=True)
def test_own_devices_that_are_none(application: Application) -> None:
    module = runtime_api.Module(growing())
    pointers = ("instance", "physical_device", "device", "queue", "get_instance_proc_addr")
    changes = dict.fromkeys(pointers)
    for name, value in {**changes, "size": 3, "queue_family": 999, "lock": None}.items():
        own = OwnDevice.from_buffer_copy(application.device)
        setattr(own, name, value)
        vulkan = application.options()
        vulkan.own_device = ctypes.pointer(own)
        address = ctypes.cast(ctypes.pointer(vulkan), ctypes.c_void_p).value
        found = runtime_api.failure(partial(runtime_api.Program, module, device=2, vulkan=address))
        assert found.status == "argument", name
        assert (
            "queue family" if name == "queue_family" else "aot_vulkan_device_t"
        ) in found.message
    module.close()


@pytest.mark.parametrize("shim", ["unified"], indirect=True)
def test_a_lost_device_is_the_applications(shim: ctypes.CDLL, application: Application) -> None:
    """With buffers of it a program ends there; without, another variant goes on."""
    data = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"]).to_bytes()
    handle, memory = application.buffer(4096)
    x = rows(9)
    written(memory, 0, x)
    for is_bound in (True, False):
        program = program_on(application, data, device=0)
        assert program.info().device == b"vulkan"
        program.set_input(0, x)
        if is_bound:
            set_input(program, 0, x, Buffer(buffer=handle, bytes=4096, offset=0))
        shim.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
        if is_bound:
            assert runtime_api.failure(program.run).status == "device"
            place = Buffer(buffer=handle, bytes=4096, offset=0)
            for again in (partial(set_input, program, 0, x), partial(set_output, program, 0)):
                assert runtime_api.failure(partial(again, place)).status == "device"
        else:
            program.run()
            assert program.info().device == b"cpu"
            np.testing.assert_allclose(program.output(0), growing_reference(x), atol=1e-6)
        program.close()


@pytest.mark.parametrize("shim", ["unified"], indirect=True)
def test_programs_with_other_locks_share_no_device(application: Application) -> None:
    """Each calls its own, and no longer than it is there."""
    module = runtime_api.Module(growing())
    own = OwnDevice.from_buffer_copy(application.device)
    own.lock = own.unlock = None
    programs = []
    for device in (application.device, own):
        vulkan = application.options()
        vulkan.own_device = ctypes.pointer(device)
        address = ctypes.cast(ctypes.pointer(vulkan), ctypes.c_void_p).value
        programs.append(runtime_api.Program(module, device=2, vulkan=address))
    programs[0].close()
    before = application.locks()
    x = rows(9)
    np.testing.assert_allclose(programs[1](x)[0], growing_reference(x), atol=1e-6)
    programs[1].close()
    assert application.locks() == before
    module.close()


@pytest.mark.parametrize("shim", ["unified", "staged"], indirect=True)
def test_programs_of_several_modules_on_one_queue(application: Application) -> None:
    """Each use of the queue is between lock and unlock, which the application counts."""
    programs = [program_on(application, data) for data in (growing(), growing(), hosted())]
    before = application.locks()
    for program in programs:
        x = rows(9)
        program(x)
    assert application.locks() >= before + 3
    for program in programs:
        program.close()
