"""Who runs kernels one by one, in one table: the interpreter, this CPU, emulators of other CPUs and
Vulkan drivers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from aot.backends.cpu.compile import compile_kernel
from aot.kernels.ir.fingerprint import fingerprint
from aot.kernels.ir.nodes import Kernel
from aot.link.code_image import link_image
from aot.target import selection as targets
from aot.target.model import Target
from tests.support import cpu_running, vulkan_device, vulkan_running
from tests.support.lowering_checks import Engine, on_interpreter
from tests.support.qemu import require_runner, run_on

Array = np.ndarray[Any, Any]


@cache
def _loaded(name: str) -> Target:
    base, *features = name.split("+")
    found = targets.load(base)
    return replace(found, features=(*found.features, *features))


def device(target: str | Target) -> Target:
    """A target by name, with features added: NAME+FEATURE+..."""
    return _loaded(target) if isinstance(target, str) else target


def on_cpu(target: str | Target) -> Engine:
    """Machine code for a target that this machine is."""
    machine = device(target)

    def run(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        cpu_running.run(kernel, buffers, params, machine)

    return run


def on_qemu(target: str | Target) -> Engine:
    """Machine code for a target that QEMU emulates; skips the test where there is no QEMU."""
    machine = device(target)
    require_runner(machine.arch)

    def run(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        job = cpu_running.make_job(kernel, buffers, params, machine)
        run_on(machine.arch, link_image([compile_kernel(kernel, machine)], machine), [job])
        cpu_running.store_results(job, buffers)

    return run


def once(engine: Engine) -> Engine:
    """Runs each kernel once, for one set of arguments: a kernel that several targets share leaves
    what it left for the first."""
    known: dict[bytes, dict[str, Array]] = {}

    def run(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        key = fingerprint(kernel)
        if key not in known:
            engine(kernel, buffers, params)
            written = [b.name for b in kernel.buffers if b.is_written]
            known[key] = {name: buffers[name].copy() for name in written}
        for name, array in known[key].items():
            buffers[name][...] = array

    return run


def on_driver(driver: str) -> Engine:
    """A shader for vulkan-1.1."""

    def run(kernel: Kernel, buffers: dict[str, Array], params: dict[str, Any]) -> None:
        for name, array in vulkan_running.run_on(driver, kernel, buffers, params).items():
            buffers[name][...] = array.reshape(buffers[name].shape)

    return run


@dataclass(frozen=True)
class KernelBackend:
    """Attributes:
    name: for messages.
    target: what kernels are lowered for.
    engine: runs them.
    """

    name: str
    target: str
    engine: Engine


INTERPRETED = {
    name: KernelBackend(f"the interpreter, for {name}", name, on_interpreter)
    for name in ("x86-64-v4", "x86-64-v2", "vulkan-1.1")
}
NATIVE = {name: KernelBackend(name, name, on_cpu(name)) for name in cpu_running.native_targets()}
DRIVEN = {
    name: KernelBackend(name, "vulkan-1.1", on_driver(name)) for name in vulkan_device.DRIVERS
}
