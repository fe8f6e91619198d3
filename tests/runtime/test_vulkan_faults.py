"""The Vulkan driver when Vulkan fails: each call in turn, missing functions, a lost device.

A loader of our own stands between the driver and the system's (vulkan_faults.c). A failure must be
a status with a message and leave nothing behind (the validation layer looks for it); unless the
device is lost, the next run must do.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.builder import Builder
from aot.errors import RuntimeFailure
from aot.link import module as modules
from aot.link.reader import read_module
from aot.runtime import tensors
from tests.support import runtime_api, vulkan_runtime
from tests.support.growing_graph import growing_graph, growing_reference, rows
from tests.support.pipeline_cache_file import HEADER, header_of
from tests.support.vulkan_faults import shim_path
from tests.support.vulkan_runtime import running_on

pytestmark = pytest.mark.vulkan

TIMEOUT = 2
OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, INITIALIZATION_FAILED, DEVICE_LOST = -1, -2, -3, -4
# Calls of one function that are made to fail, one by one; few where other results or memory have
# more of them
MOST_CALLS, FEW_CALLS = 5, 2
# The cache is done without, and idling is asked for only when something else has failed.
CACHE = {"vkCreatePipelineCache", "vkGetPipelineCacheData", "vkMergePipelineCaches"}
HARMLESS = {*CACHE, "vkDeviceWaitIdle"}
# Called where memory is not coherent.
COHERENT = {"vkFlushMappedMemoryRanges", "vkInvalidateMappedMemoryRanges"}

Watch = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint32)


# how memory is, and whether the host runs a part of the program
PLACES = {
    "unified": ("unified", False, False),
    "staged": ("staged", False, False),
    "incoherent": ("unified", True, False),
    "host": ("unified", False, True),
    "host-staged": ("staged", False, True),
    "host-incoherent": ("unified", True, True),
    "host-staged-incoherent": ("staged", True, True),
}


@pytest.fixture(params=["unified", "staged", "host-staged"])
def faults(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """The loader; while it is there the driver uses it."""
    memory, is_incoherent, has_host = PLACES[request.param]
    shim = ctypes.CDLL(str(shim_path()))
    shim.faults_incoherent(is_incoherent)
    monkeypatch.setattr(Attempt, "has_host", has_host)
    shim.faults_name.restype = ctypes.c_char_p
    monkeypatch.setenv("AOT_VULKAN_LIBRARY", str(shim_path()))
    monkeypatch.setenv("AOT_VULKAN_MEMORY", memory)
    with running_on("lavapipe", tmp_path):
        yield shim
    shim.faults_set(b"", 0, 0)
    shim.faults_hide(b"")
    shim.faults_watch(None)
    shim.faults_incoherent(False)


LISTED = ("cooperativeMatrix[8x16x32 f16*f16+f32]", "cooperativeMatrix[8x8x16 u8*i8+u32]")
UNLISTED = (
    "cooperativeMatrix[8x16x16 f16*f16+f32]",
    "cooperativeMatrix[8x16x32 f16*f16+f16]",
    "cooperativeMatrix[8x8x4 f64*f64+f64]",  # of a type that is not known
    "cooperativeMatrix[8x8x8 i8*i8+i32]",  # saturates
    "cooperativeMatrix[8x8x8 f16*f16+f32]",  # not a subgroup's
    "cooperativeMatrix[",
    "subgroupSize[64]",
    "subgroupSize[",
)


@pytest.mark.parametrize("has_shapes", [True, False])
def test_shapes_of_matrices_are_looked_up(faults: ctypes.CDLL, has_shapes: bool) -> None:
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    faults.faults_shapes(has_shapes)
    for name in (*UNLISTED, *LISTED, "subgroupSize[8]"):
        needed = replace(image, variants=(replace(variant, features=(name,)),))
        if name == "subgroupSize[8]" or (has_shapes and name in LISTED):
            aot.load(modules.module_bytes(needed), "vulkan").close()
            continue
        message = f"there is no {re.escape(name)}, which the variant needs"
        with pytest.raises(RuntimeFailure, match=message) as caught:
            aot.load(modules.module_bytes(needed), "vulkan")
        assert caught.value.status == "unsupported"
    faults.faults_shapes(False)


# In the order of the structures that say whether they are there.
FEATURES = (
    *("shaderInt16", "shaderInt64", "shaderFloat64"),
    *("storageBuffer16BitAccess", "storageBuffer8BitAccess", "shaderFloat16", "shaderInt8"),
    *("shaderIntegerDotProduct", "vulkanMemoryModel", "cooperativeMatrix"),
    *("computeFullSubgroups", "subgroupBasic", "subgroupArithmetic", "subgroupShuffle"),
)


@pytest.mark.parametrize("faults", ["unified"], indirect=True)
def test_each_feature_is_looked_up(faults: ctypes.CDLL) -> None:
    """A device that lists the extension of matrices, and says that it has none."""
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    faults.faults_extensions(1)
    faults.faults_shapes(True)
    missing = []
    for name in FEATURES:
        needed = replace(image, variants=(replace(variant, features=(name,)),))
        try:
            aot.load(modules.module_bytes(needed), "vulkan").close()
        except RuntimeFailure as failure:
            assert re.search(f"there is no {name}, which the variant needs", str(failure))
            missing.append(name)
    assert "cooperativeMatrix" in missing and "shaderInt8" not in missing
    everything = tuple(name for name in FEATURES if name not in missing)
    needed = replace(image, variants=(replace(variant, features=everything),))
    aot.load(modules.module_bytes(needed), "vulkan").close()
    faults.faults_shapes(False)
    faults.faults_extensions(0)


@pytest.mark.parametrize("count", [0, 1, 383, 384, 2000])
def test_extensions_are_found_behind_any_number_of_others(faults: ctypes.CDLL, count: int) -> None:
    image = read_module(aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes())
    (variant,) = image.variants
    needed = replace(image, variants=(replace(variant, features=("shaderInt8",)),))
    faults.faults_extensions(count)
    aot.load(modules.module_bytes(needed), "vulkan").close()
    faults.faults_extensions(0)


def names_of(shim: ctypes.CDLL) -> list[str]:
    found = []
    while (name := shim.faults_name(len(found))) is not None:
        found.append(name.decode())
    return found


@cache
def module_bytes(*, has_host: bool) -> bytes:
    if has_host:
        made = aot.compile(hosted_graph(), targets=["vulkan-1.1", "host"])
    else:
        made = aot.compile(growing_graph(), targets=["vulkan-1.1"])
    return made.to_bytes()


def hosted_graph() -> Any:
    """y = tanh(relu(x @ w) + s), s its sums of rows in f64, of N rows; the last sum is kept."""
    b = Builder()
    x = b.input("x", "f32[N, 24]")
    w = b.constant(np.linspace(-1, 1, 24 * 40, dtype=np.float32).reshape(24, 40))
    before = b.op("state", variable="total", dtype="f64", shape=[1, 1])
    a = b.op("relu", b.op("matmul", x, w))
    sums = b.op("reduce_sum", b.op("cast", a, to="f64"), axes=[1], keepdims=True)
    total = b.op("reduce_sum", sums, axes=[0], keepdims=True)
    both = b.op("add", sums, b.op("mul", before, b.constant(1e-3, "f64")))
    b.op("assign", before, total)
    b.output("y", b.op("tanh", b.op("add", a, b.op("cast", both, to="f32"))))
    return b.module()


class Attempt:
    """A program from its making to its end, two shapes and a timed run among it.

    Attributes:
        has_host: whether the CPU runs a part of it.
        total: what a run with a host keeps.
    """

    has_host = False

    def __init__(self) -> None:
        self.module = runtime_api.Module(module_bytes(has_host=self.has_host))
        self.total = 0.0
        self.profile = vulkan_runtime.Profile(lambda user, launch: None)
        self.program: runtime_api.Program | None = None

    def create(self) -> None:
        address = ctypes.cast(self.profile, ctypes.c_void_p).value
        self.program = runtime_api.Program(self.module, device=2, profile=address)

    def run(self, count: int) -> None:
        assert self.program is not None
        x = rows(count)
        y = np.empty((count, 40), np.float32)
        self.program.set_input(0, x)
        self.program.set_output(0, y)
        runtime_api.call("aot_program_run", self.program.handle)
        if not self.has_host:
            np.testing.assert_allclose(y, growing_reference(x), atol=1e-6)
            return
        w = np.linspace(-1, 1, 24 * 40, dtype=np.float32).reshape(24, 40)
        made = np.maximum(x.astype(np.float64) @ w, 0)
        sums = made.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(y, np.tanh(made + sums + 1e-3 * self.total), atol=1e-5)
        self.total = sums.sum()

    def whole(self) -> None:
        self.create()
        self.run(9)
        self.run(30)
        self.run(9)

    def close(self) -> None:
        if self.program is not None:
            self.program.close()
        self.module.close()


def outcome(result: int) -> tuple[str, ...]:
    """Statuses that a failure may give."""
    if result in (OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY):
        return ("memory", "unsupported")  # the latter where no other variant is left
    return ("device", "unsupported")


RESULTS = (OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, INITIALIZATION_FAILED)


# each result in one place, and one result where memory is otherwise and a host has a part
FAULTS = [(place, result) for place in PLACES for result in RESULTS]
OFTEN = [("unified", r) for r in RESULTS] + [
    (place, OUT_OF_DEVICE_MEMORY)
    for place in ("staged", "host-incoherent", "host-staged-incoherent")
]


@pytest.mark.parametrize(
    ("faults", "result"),
    [f if f in OFTEN else pytest.param(*f, marks=pytest.mark.sweep) for f in FAULTS],
    indirect=["faults"],
)
def test_every_call_may_fail(
    faults: ctypes.CDLL, result: int, request: pytest.FixtureRequest
) -> None:
    attempt = Attempt()
    faults.faults_set(b"", 0, 0)
    attempt.whole()
    attempt.close()
    counts = {name: faults.faults_calls(name.encode()) for name in names_of(faults)}
    never = {name for name, count in counts.items() if not count}
    assert never <= HARMLESS | COHERENT
    assert ("incoherent" in request.node.callspec.params["faults"]) != bool(COHERENT & never)
    is_first = result == OUT_OF_DEVICE_MEMORY and not attempt.has_host
    most = MOST_CALLS if is_first else FEW_CALLS
    for name in counts.keys() - never - HARMLESS:
        for number in range(min(counts[name], most)):
            check_fault(faults, name, number, result)


def check_fault(faults: ctypes.CDLL, name: str, number: int, result: int) -> None:
    """Fails one call; then what was begun must go on as if nothing had been."""
    faults.faults_set(name.encode(), number, result)
    attempt = Attempt()
    failed: list[runtime_api.Failed] = []
    runs = [partial(attempt.run, count) for count in (9, 30, 9)]
    for step in (attempt.create, *runs):
        for _ in range(2):
            try:
                step()
            except runtime_api.Failed as failure:
                failed.append(failure)
                continue
            break
    attempt.run(9)
    attempt.close()
    if not failed:  # in a run: on a device that was made anew
        assert result == INITIALIZATION_FAILED and not attempt.has_host
        return
    assert len(failed) == 1, (name, number, failed)
    (failure,) = failed
    assert failure.status in outcome(result), (name, number, failure)
    assert name in failure.message or "out of device memory" in failure.message, failure


@pytest.mark.parametrize("faults", ["unified", "staged"], indirect=True)
@pytest.mark.parametrize("name", sorted(CACHE))
def test_the_cache_is_done_without(faults: ctypes.CDLL, name: str) -> None:
    for number in range(3):
        faults.faults_set(name.encode(), number, OUT_OF_HOST_MEMORY)
        attempt = Attempt()
        attempt.whole()
        attempt.close()


def test_views_are_made_where_shaders_read_texels(
    faults: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two for each buffer of a class; else none at all."""
    for setting in ("off", "on"):
        monkeypatch.setenv("AOT_VULKAN_TEXELS", setting)
        faults.faults_set(b"", 0, 0)
        attempt = Attempt()
        attempt.whole()
        attempt.close()
        views = faults.faults_calls(b"vkCreateBufferView")
        assert (views == 0) if setting == "off" else (views >= 8 and views % 2 == 0)


@pytest.mark.parametrize("name", ["vkQueueSubmit", "vkWaitForFences"])
def test_a_lost_device_is_made_anew_once(faults: ctypes.CDLL, name: str) -> None:
    """What a program with a state has kept is gone with the device: it ends there."""
    attempt = Attempt()
    attempt.create()
    attempt.run(9)
    faults.faults_set(name.encode(), 0, DEVICE_LOST)
    if attempt.has_host:
        check_is_lost(attempt, f"vulkan: {name}: the device is lost")
        attempt.close()
        return
    attempt.run(9)
    attempt.run(30)
    faults.faults_set(name.encode(), 0, DEVICE_LOST)
    check_is_lost(attempt, f"vulkan: {name}: the device is lost")
    attempt.close()


@pytest.mark.parametrize("faults", ["unified"], indirect=True)
def test_a_device_is_made_anew_again_in_the_long_run(faults: ctypes.CDLL) -> None:
    """Once in 100 good runs, and what the program was before goes when an input is set again."""
    attempt = Attempt()
    attempt.create()
    assert attempt.program is not None
    attempt.run(9)
    bytes_then = attempt.program.info().memory_bytes
    for _ in range(3):
        faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
        attempt.run(9)
        for _ in range(99):
            attempt.program.run()
        assert attempt.program.info().memory_bytes > bytes_then
        attempt.run(9)
        assert attempt.program.info().memory_bytes <= bytes_then
    faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
    attempt.run(9)
    for _ in range(98):
        attempt.program.run()
    faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
    check_is_lost(attempt, "vulkan: vkWaitForFences: the device is lost")
    attempt.close()


def check_is_lost(attempt: Attempt, first: str) -> None:
    for message in (first, "vulkan: the device is lost"):
        with pytest.raises(runtime_api.Failed) as caught:
            attempt.run(9)
        assert (caught.value.status, caught.value.message) == ("device", message)


LOSSES = {
    "lost": (DEVICE_LOST, "vulkan: {}: the device is lost"),
    "hung": (TIMEOUT, r"vulkan: llvmpipe.* has not finished after \d+ ms: .*"),
}


@pytest.mark.parametrize("faults", ["unified", "staged"], indirect=True)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_cpu_goes_on_where_a_gpu_fails(
    faults: ctypes.CDLL, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any device allowed; a device that is lost again and again is not made anew for ever."""
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "llvmpipe")
    module = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"])
    result, message = LOSSES[loss]
    with aot.load(module.to_bytes(), "auto") as program:
        assert (program.device, program.skipped) == ("vulkan", "")
        np.testing.assert_allclose(
            program({"x": rows(9)})["y"], growing_reference(rows(9)), atol=1e-6
        )
        faults.faults_set(b"vkWaitForFences", 0, result)
        faults.faults_repeat(True)
        for count in (9, 30):
            found = program({"x": rows(count)})["y"]
            np.testing.assert_allclose(found, growing_reference(rows(count)), atol=1e-6)
            assert program.device == "cpu"
            assert re.fullmatch("vulkan-1.1: " + message.format("vkWaitForFences"), program.skipped)
        faults.faults_repeat(False)


@pytest.mark.parametrize("faults", ["unified"], indirect=True)
def test_outputs_stay_where_they_were(faults: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device that is made anew, and on the CPU then: the caller knows where since before."""
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "llvmpipe")
    data = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"]).to_bytes()
    allocator = runtime_api.CountingAllocator()
    module = runtime_api.Module(data, allocator=allocator)
    program = runtime_api.Program(module)
    x = rows(9)
    program.set_input(0, x)
    program.prepare()
    known = tensors.CTensor()
    runtime_api.call("aot_program_get_output", program.handle, 0, out=known)
    for device in ("vulkan", "cpu"):
        faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
        program.run()
        assert program.info().device == device.encode()
        for address in (known.data, ctypes.addressof(known.dims.contents)):
            assert any(at <= address < at + live[0] for at, live in allocator.live.items()), device
        assert tuple(known.dims[:2]) == (9, 40)
        found = np.empty((9, 40), np.float32)
        ctypes.memmove(found.ctypes.data, known.data, found.nbytes)
        np.testing.assert_allclose(found, growing_reference(x), atol=1e-6)
    program.close()
    module.close()
    assert allocator.errors == [] and allocator.live == {}


@pytest.mark.parametrize("faults", ["unified", "staged"], indirect=True)
def test_the_cpu_takes_shapes_for_which_memory_is_missing(
    faults: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "llvmpipe")
    module = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"])
    with aot.load(module.to_bytes(), "auto") as program:
        program({"x": rows(9)})
        faults.faults_set(b"vkAllocateMemory", 0, OUT_OF_DEVICE_MEMORY)
        found = program({"x": rows(300)})["y"]
        np.testing.assert_allclose(found, growing_reference(rows(300)), atol=1e-6)
        assert program.device == "cpu"
        assert "out of device memory" in program.skipped


@pytest.mark.parametrize("faults", ["unified"], indirect=True)
def test_another_variant_gets_shapes_that_it_takes(
    faults: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "llvmpipe")
    module = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"])
    image = read_module(module.to_bytes())
    gpu, cpu = image.variants
    (entry,) = cpu.entry_points
    (x,) = entry.inputs
    few = replace(x, dims=(replace(x.dims[0], maximum=8), x.dims[1]))
    cpu = replace(cpu, entry_points=(replace(entry, inputs=(few,)),))
    data = modules.module_bytes(replace(image, variants=(gpu, cpu)))
    with aot.load(data, "auto") as program:
        faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
        faults.faults_repeat(True)
        with pytest.raises(RuntimeFailure, match="the device is lost"):
            program({"x": rows(9)})
        assert program.device == "vulkan"
        found = program({"x": rows(8)})["y"]
        np.testing.assert_allclose(found, growing_reference(rows(8)), atol=1e-6)
        assert program.device == "cpu"
        faults.faults_repeat(False)


def test_no_other_variant_is_taken_for_a_named_device(faults: ctypes.CDLL) -> None:
    module = aot.compile(growing_graph(), targets=["vulkan-1.1", "host"])
    with aot.load(module.to_bytes(), "vulkan") as program:
        program({"x": rows(9)})
        faults.faults_set(b"vkAllocateMemory", 0, OUT_OF_DEVICE_MEMORY)
        with pytest.raises(RuntimeFailure, match="out of device memory"):
            program({"x": rows(300)})
        assert program.device == "vulkan"
        program({"x": rows(300)})


def test_a_state_does_not_move(faults: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first step a program with a state goes on elsewhere, then not before a reset."""
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "llvmpipe")
    module = aot.compile(hosted_graph(), targets=["vulkan-1.1", "host"])
    with aot.load(module.to_bytes(), "auto") as program:
        first = program({"x": rows(9)})["y"]
        faults.faults_set(b"vkWaitForFences", 0, DEVICE_LOST)
        with pytest.raises(RuntimeFailure, match="the device is lost"):
            program({"x": rows(9)})
        program.reset()
        np.testing.assert_array_equal(program({"x": rows(9)})["y"], first)


@pytest.mark.parametrize("is_at_work", [False, True])
def test_a_device_that_hangs_is_given_up(faults: ctypes.CDLL, is_at_work: bool) -> None:
    """A wait that ends by its deadline; the device is done when the program ends, or never."""
    attempt = Attempt()
    attempt.create()
    attempt.run(9)
    faults.faults_set(b"vkWaitForFences", 0, TIMEOUT)
    faults.faults_repeat(is_at_work)
    hangs = r"vulkan: llvmpipe.* has not finished after \d+ ms: it hangs, or needs more time .*"
    for message in (hangs, "vulkan: the device is lost"):
        with pytest.raises(runtime_api.Failed) as caught:
            attempt.run(9)
        assert caught.value.status == "device"
        assert re.fullmatch(message, caught.value.message)
    attempt.close()
    destroyed = faults.faults_calls(b"vkDeviceWaitIdle")
    assert destroyed == (not is_at_work)
    faults.faults_repeat(False)


def test_a_deadline_ends_a_wait(
    faults: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What takes longer than a millisecond ends so; the deadline of software is off by default."""
    b = Builder()
    x = b.input("x", "f32[1024, 1024]")
    b.output("y", b.op("matmul", b.op("matmul", x, x), x))
    module = aot.compile(b.module(), targets=["vulkan-1.1"])
    feeds = {"x": np.zeros((1024, 1024), np.float32)}
    monkeypatch.setenv("AOT_VULKAN_TIMEOUT_MS", "1")
    late = pytest.raises(RuntimeFailure, match="has not finished after 1 ms")
    with aot.load(module.to_bytes(), "vulkan") as program, late:
        program(feeds)
    monkeypatch.delenv("AOT_VULKAN_TIMEOUT_MS")
    with aot.load(module.to_bytes(), "vulkan") as program:
        assert not program(feeds)["y"].any()


@pytest.mark.parametrize("faults", ["unified", "staged"], indirect=True)
def test_every_function_may_be_missing(faults: ctypes.CDLL) -> None:
    loader = (vulkan_runtime.RUNTIME / "drivers/vulkan/loader.h").read_text()
    names = [line.split("(")[1].split(")")[0] for line in loader.splitlines() if "  X(vk" in line]
    assert len(names) > 50
    for name in names:
        faults.faults_hide(name.encode())
        attempt = Attempt()
        if name == "vkEnumerateInstanceVersion":  # the loaders of Vulkan 1.0
            message = "the system has version 1.0, not 1.1"
        else:
            message = f"the driver has no {name}"
        with pytest.raises(runtime_api.Failed, match=message) as caught:
            attempt.create()
        assert caught.value.status == "unsupported"
        attempt.close()


CRASHES = """
import ctypes, os, sys
import aot
shim = ctypes.CDLL(sys.argv[1])
watch = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint32)
crash = watch(lambda name, call: name == b"vkCreateComputePipelines" and os._exit(9))
shim.faults_watch(crash)
aot.load(sys.argv[2], "vulkan")
"""


def test_a_driver_that_crashes_costs_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the cache is done without, then the device; what is left of it can be removed."""
    path = tmp_path / "m.aotm"
    aot.compile(growing_graph(), targets=["vulkan-1.1", "host"]).save(path)
    monkeypatch.setenv("AOT_VULKAN_LIBRARY", str(shim_path()))
    monkeypatch.setenv("AOT_VULKAN_DEVICE", "llvmpipe")

    def crash() -> None:
        command = [sys.executable, "-c", CRASHES, str(shim_path()), str(path)]
        assert subprocess.run(command, check=False).returncode == 9

    with running_on("lavapipe", tmp_path):
        aot.load(path, "vulkan").close()
        (cache,) = (tmp_path / "cache" / "pipelines").iterdir()
        crash()
        mark = cache.with_name(cache.name + ".starting")
        assert mark.read_text().startswith("1 ")
        aot.load(path, "vulkan").close()  # without the cache's file, which is written anew
        assert [p.name for p in cache.parent.iterdir()] == [cache.name]
        crash()
        crash()
        assert mark.read_text().startswith("2 ")
        message = rf"llvmpipe.*: its driver has ended the process 2 times .*; remove {mark} to try"
        with pytest.raises(RuntimeFailure, match=message):
            aot.load(path, "vulkan")
        with aot.load(path, "auto") as program:
            assert program.device == "cpu"
            assert re.search(message, program.skipped)
        notes = [d.note for d in aot.devices() if d.name.startswith("llvmpipe")]
        assert len(notes) == 1
        assert re.search(message, notes[0])
        mark.unlink()
        aot.load(path, "vulkan").close()
        assert [p.name for p in cache.parent.iterdir()] == [cache.name]


def test_a_start_of_another_process_is_no_crash(tmp_path: Path) -> None:
    data = aot.compile(growing_graph(), targets=["vulkan-1.1"]).to_bytes()
    with running_on("lavapipe", tmp_path):
        aot.load(data, "vulkan").close()
        (cache,) = (tmp_path / "cache" / "pipelines").iterdir()
        mark = cache.with_name(cache.name + ".starting")
        mark.write_text(f"2 {os.getppid()} llvmpipe\n")
        aot.load(data, "vulkan").close()
        assert mark.exists()


@pytest.mark.parametrize("faults", ["unified", "staged"], indirect=True)
def test_what_another_process_wrote_is_merged(faults: ctypes.CDLL, tmp_path: Path) -> None:
    """Another's file appears between this one's reading and writing."""
    attempt = Attempt()
    attempt.create()
    attempt.close()
    (path,) = (tmp_path / "cache" / "pipelines").iterdir()
    whole = path.read_bytes()
    data = whole[HEADER:] + b"more"
    others = header_of(whole, data) + data
    path.unlink()

    def appear(name: bytes, call: int) -> None:
        if name == b"vkCreateComputePipelines":
            path.write_bytes(others)

    watcher: Any = Watch(appear)
    faults.faults_set(b"", 0, 0)
    faults.faults_watch(watcher)
    attempt = Attempt()
    attempt.create()
    faults.faults_watch(None)
    assert faults.faults_calls(b"vkMergePipelineCaches") == 1
    attempt.close()
    assert path.read_bytes() == whole  # lavapipe's own data holds nothing to merge
