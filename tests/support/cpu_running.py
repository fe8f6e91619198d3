"""Compiles kernels for a CPU target, links them and runs them: here, or under QEMU.

    run(kernel, buffers, params, target)     changes `buffers` in place, like the interpreter's run

Owns the layout of arrays in the four class buffers, the guard pages behind them, and the parameter
block. What is compared with what is the tests' business.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot.backends.cpu.compile import compile_kernel
from aot.backends.cpu.scratch import scratch_bytes
from aot.ir.dims import evaluate
from aot.ir.types import DType
from aot.kernels.ir.nodes import BufferClass, Kernel
from aot.link.code_image import CodeImage, link_image
from aot.target import selection as targets
from aot.target.model import Target
from tests.support.guarded import PAGE, Guarded

Array = NDArray[Any]
CLASSES = tuple(c.name.lower() for c in BufferClass)
POISON = b"\xa5"
GAP = 64


@cache
def target_of(name: str) -> Target:
    return targets.load(name)


def native_targets(*, strongest: bool = False) -> list[str]:
    """A target for each length of vectors that this machine has, shortest first: the first by name,
    or the last, whose instructions are the most."""
    import llvmlite.binding as llvm

    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    has = llvm.get_host_cpu_features()
    found: dict[int, str] = {}
    for name in targets.names():
        target = target_of(name)
        runs = target.arch == arch and all(has.get(f, False) for f in target.features)
        # its instructions are those of x86-64-v3, its vectors as long as those of x86-64-v2
        if runs and name != "x86-64-v3-128" and (strongest or target.vector_bytes not in found):
            found[target.vector_bytes] = name
    return [found[length] for length in sorted(found)]


@dataclass
class Job:
    """One dispatch, ready to run: a function of an image and the bytes that it works on.

    Attributes:
        places: class, start and bytes of each buffer.
        guards: where pages without access begin in each class, beside the one behind it.
    """

    kernel: Kernel
    target: Target
    classes: dict[str, bytearray]
    params: dict[str, float | int]
    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    guards: dict[str, list[int]] = field(default_factory=dict)

    @property
    def grid(self) -> tuple[int, int, int]:
        dims = {
            p.name: int(self.params[p.name]) for p in self.kernel.params if p.dtype is DType.INDEX
        }
        x, y, z = (evaluate(d, dims) for d in self.kernel.grid)
        return x, y, z

    @property
    def block(self) -> bytes:
        """The parameter block: a word each, floats in the low bits."""
        out = bytearray()
        width = self.target.word_bytes
        for param in self.kernel.params:
            value = self.params[param.name]
            if param.dtype is DType.INDEX:
                word = (int(value) % (1 << 8 * width)).to_bytes(width, "little")
            else:
                word = np.array(value, param.dtype.numpy).tobytes()
            # What a word has beyond the value means nothing: it must not be read.
            out += word + b"\xee" * (width - len(word))
        return bytes(out)

    @property
    def scratch_bytes(self) -> int:
        return scratch_bytes(self.kernel, self.target)


def make_job(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    params: Mapping[str, float | int],
    target: Target,
    guard: str = "",
) -> Job:
    """Lays out `buffers`, given by class or by kernel buffer, as the interpreter takes them. With
    `guard` a page without access lies "before" or "behind" each of those given by kernel buffer, at
    its very first or last byte."""
    if not any(b.name in buffers for b in kernel.buffers):
        classes = {
            c: bytearray(np.ascontiguousarray(buffers[c]).tobytes())
            if c in buffers
            else bytearray()
            for c in CLASSES
        }
        return Job(kernel, target, classes, dict(params))
    classes = {c: bytearray() for c in CLASSES}
    values: dict[str, float | int] = dict(params)
    places = {}
    guards: dict[str, list[int]] = {}
    for buffer in kernel.buffers:
        name, size = buffer.binding.name.lower(), buffer.dtype.bytes
        image = classes[name]
        data = np.ascontiguousarray(buffers[buffer.name]).tobytes()
        if guard == "before":
            image += POISON * (-len(image) % PAGE)
            guards.setdefault(name, []).append(len(image))
            image += POISON * PAGE
        elif guard == "behind":
            image += POISON * (-(len(image) + len(data)) % PAGE)
        else:  # aligned to the element and to nothing more
            image += POISON * (GAP - len(image) % GAP + size)
        values[buffer.offset.name] = len(image)
        places[buffer.name] = (name, len(image), len(data))
        image += data
        if guard == "behind":
            guards.setdefault(name, []).append(len(image))
            image += POISON * PAGE
    for name, image in classes.items():
        # Memory ends where a page ends: its start is aligned where its size is.
        widest = max(
            (b.dtype.bytes for b in kernel.buffers if b.binding.name.lower() == name), default=1
        )
        image += POISON * (-len(image) % (PAGE if guard else widest))
    return Job(kernel, target, classes, values, places, guards)


def store_results(job: Job, buffers: Mapping[str, Array]) -> None:
    """Copies what the job left in its written classes back, and checks that gaps are as before."""
    if not job.places:
        for name in ("arena", "outputs"):
            if name in buffers:
                buffers[name].reshape(-1).view(np.uint8)[:] = np.frombuffer(
                    job.classes[name], np.uint8
                )
        return
    for name, image in job.classes.items():
        poison = bytearray(image)
        for binding, start, size in job.places.values():
            if binding == name:
                poison[start : start + size] = POISON * size
        assert poison == POISON * len(image), f"a store between the buffers of {name}"
    for buffer in job.kernel.buffers:
        if buffer.is_written:
            binding, start, size = job.places[buffer.name]
            data = np.frombuffer(job.classes[binding], np.uint8)[start : start + size]
            buffers[buffer.name].reshape(-1).view(np.uint8)[:] = data


def run(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    params: Mapping[str, float | int],
    target: Target,
    guard: str = "",
) -> None:
    """Runs `kernel` here, changing `buffers` in place."""
    job = make_job(kernel, buffers, params, target, guard)
    run_native(link_image([compile_kernel(kernel, target)], target), [job])
    store_results(job, buffers)


def run_native(image: CodeImage, jobs: list[Job]) -> None:
    """Runs job i with entry i of the image, in this process; a bad access ends it."""
    code = mmap.mmap(-1, len(image.data), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(image.data)
    base = ctypes.addressof(ctypes.c_char.from_buffer(code))
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_uint32] * 3)
    for job, entry in zip(jobs, image.entries, strict=True):
        memory = {
            name: Guarded(bytes(data), job.guards.get(name, ()))
            for name, data in job.classes.items()
        }
        params = Guarded(job.block)
        scratch = Guarded(bytes(-(-job.scratch_bytes // 64) * 64))
        pointers = [memory[c].address for c in CLASSES] + [params.address, scratch.address]
        dispatch = (ctypes.c_void_p * 6)(*pointers)
        function = signature(base + entry)
        width, height, depth = job.grid
        for z in range(depth):
            for y in range(height):
                for x in range(width):
                    function(dispatch, x, y, z)
        for name, data in job.classes.items():
            data[:] = memory[name].read()
