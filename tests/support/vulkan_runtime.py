"""The runtime with its Vulkan driver, on one software driver, with the validation layer listening.

Owns the environment that a program of these tests sees, and small modules of hand-written programs.
What the layer says fails the test that made it speak.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.backends.vulkan import requirements
from aot.backends.vulkan.emit import compile_kernel
from aot.backends.vulkan.shader import Shader
from aot.kernels.ir.nodes import Kernel
from aot.link.image import (
    Arch,
    Device,
    DimInfo,
    EntryPointImage,
    ExecutableImage,
    ModuleImage,
    ProgramImage,
    TensorInfo,
    VariantImage,
)
from aot.link.module import module_bytes
from aot.link.reader import read_module
from aot.runtime import loader, vulkan_facts
from aot.runtime.vulkan_facts import Info, Launch, Pipeline, Profile
from aot.target.selection import load as load_target
from tests.support import runtime_api, vulkan_device
from tests.support.runtime_build import RUNTIME, build, library_sources
from tests.support.runtime_modules import Assembler

SETTINGS = """
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf
khronos_validation.log_filename = {log}
"""
SYNCHRONIZATION = (
    "khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT\n"
)
CACHE_STATES = ("off", "none", "ignored", "used")  # aot_vulkan_cache_state_t
VALIDATION_MANIFESTS = Path("/usr/share/vulkan/explicit_layer.d")
FLAGS = ["-O1", "-g", "-DAOT_VULKAN=1", "-pthread"]


def vulkan_sources() -> list[Path]:
    """The library with the Vulkan driver."""
    return [*library_sources(), *sorted(RUNTIME.glob("drivers/vulkan/*.c"))]


@cache
def library_path() -> Path:
    """The runtime with its Vulkan driver; skips the test where there is no compiler."""
    flags = [*FLAGS, "-fPIC", "-shared", "-fvisibility=default", "-ldl"]
    path = build("libaot_runtime.so", vulkan_sources(), flags)
    if path is None:
        pytest.skip("gcc is not installed")
    return path


@cache
def tool_path() -> Path:
    """aot-run with the Vulkan driver; skips the test where there is no compiler."""
    sources = [*vulkan_sources(), *sorted(RUNTIME.glob("tools/*.c"))]
    path = build("aot-run", sources, [*FLAGS, "-ldl", "-lm"])
    if path is None:
        pytest.skip("gcc is not installed")
    return path


@cache
def library() -> ctypes.CDLL:
    """The loaded library, for runtime_api."""
    lib = ctypes.CDLL(str(library_path()))
    for name, (result, *arguments) in loader._SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    vulkan_facts.declare(lib)
    return lib


def manifest(driver: str) -> Path:
    """A driver's manifest; skips the test where it is not there."""
    found = vulkan_device.manifests()
    if driver not in found:
        pytest.skip(f"driver {driver} is not there: {vulkan_device.INSTALL}")
    return found[driver]


def environment(driver: str, folder: Path, *, is_overlapping: bool = False) -> dict[str, str]:
    """What a process needs to see `driver` alone, its caches in `folder`.

    The layer takes a dispatch to touch all of what is bound: where dispatches are to overlap, it
    does not look at their order.
    """
    settings = folder / "vk_layer_settings.txt"
    text = SETTINGS + ("" if is_overlapping else SYNCHRONIZATION)
    settings.write_text(text.format(log=folder / "validation.log"))
    found = {
        "AOT_RUNTIME_LIBRARY": str(library_path()),
        "VK_DRIVER_FILES": str(manifest(driver)),
        "VK_ICD_FILENAMES": str(manifest(driver)),  # of older loaders
        "AOT_CACHE_DIR": str(folder / "cache"),
        "VK_LAYER_SETTINGS_PATH": str(settings),
        "AOT_VULKAN_OVERLAP": "1" if is_overlapping else "0",
    }
    if (VALIDATION_MANIFESTS / "VkLayer_khronos_validation.json").exists():
        found["VK_INSTANCE_LAYERS"] = vulkan_device.VALIDATION_LAYER
    return found


@contextmanager
def running_on(driver: str, folder: Path, *, is_overlapping: bool = False) -> Iterator[None]:
    """The environment while it lasts.

    Raises:
        AssertionError: the validation layer said something.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(driver, folder, is_overlapping=is_overlapping).items():
            patch.setenv(name, value)
        patch.setattr(runtime_api, "library", library)
        yield
    assert_silent(folder)


def assert_silent(folder: Path) -> None:
    """Fails with what the validation layer said."""
    log = folder / "validation.log"
    said = log.read_text() if log.exists() else ""
    assert not said, f"the validation layer says: {said}"


def info_of(program: loader.Program) -> Info:
    """What the driver says of a program."""
    info = vulkan_facts.info_of(library(), program._program)
    assert info is not None
    return info


def pipelines_of(program: loader.Program) -> list[Pipeline]:
    """The program's unique pipelines."""
    return vulkan_facts.pipelines_of(library(), program._program)


@dataclass(frozen=True)
class Tensor:
    """An input or output of a hand-written program."""

    name: str
    dtype: Any
    dims: tuple[int | str, ...]

    def info(self) -> TensorInfo:
        dims = (DimInfo(extent=d) if isinstance(d, int) else DimInfo(text=d) for d in self.dims)
        return TensorInfo(self.name, self.dtype, tuple(dims))


def module_of(
    assembler: Assembler,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    kernels: Sequence[Kernel] = (),
    *,
    shaders: Sequence[ExecutableImage] = (),
    needs: Sequence[Shader] = (),
    rodata: bytes = b"",
    registers: Mapping[str, Sequence[int]] | None = None,
    **program: Any,
) -> bytes:
    """A module file of one Vulkan variant with this program.

    Its executables are the kernels, then the shaders, whose limits and features are those that
    `needs` asks for. `registers` may give "inputs" and "outputs" their offset registers.
    """
    target = load_target("vulkan-1.1")
    compiled = [compile_kernel(k, target) for k in kernels]
    offsets = registers or {}
    made = ProgramImage(
        register_count=assembler._registers,
        code=tuple(assembler.words),
        blocks=tuple(assembler.blocks),
        execute_block=assembler.execute_block,
        input_offset_registers=tuple(offsets.get("inputs", ())),
        output_offset_registers=tuple(offsets.get("outputs", ())),
        **program,
    )
    executables = tuple(
        ExecutableImage(
            k.name,
            len(k.params),
            spirv=s.words,
            scratch_bytes=s.shared_bytes,
            workgroup_size=s.workgroup_size,
            param_buffer_bytes=s.param_buffer_bytes,
        )
        for k, s in zip(kernels, compiled, strict=True)
    )
    entry = EntryPointImage(
        "main", tuple(t.info() for t in inputs), tuple(t.info() for t in outputs), made
    )
    asking = [*compiled, *needs]
    variant = VariantImage(
        "test",
        Device.VULKAN,
        Arch.NONE,
        4,
        (*executables, *shaders),
        (entry,),
        requirements.features(asking),
        limits=requirements.limits(asking),
    )
    return module_bytes(ModuleImage((variant,), rodata, (), "tests"))


def reading_texels(module: bytes) -> bytes:
    """The module whose Vulkan variants have a shader that reads texels for each: the same words."""
    image = read_module(module)
    variants = (
        replace(v, executables=tuple(replace(e, texel_spirv=e.spirv) for e in v.executables))
        if v.device is Device.VULKAN
        else v
        for v in image.variants
    )
    return module_bytes(replace(image, variants=tuple(variants)))


def launches_of(module: bytes, inputs: Sequence[np.ndarray[Any, Any]]) -> list[Launch]:
    """What a run tells of its launches; the outputs stay the program's own."""
    told: list[Launch] = []

    def tell(user: int | None, launch: Any) -> None:
        copy = Launch()
        ctypes.memmove(ctypes.byref(copy), launch, ctypes.sizeof(Launch))
        told.append(copy)

    function = Profile(tell)
    opened = runtime_api.Module(module)
    program = runtime_api.Program(
        opened, device=2, profile=ctypes.cast(function, ctypes.c_void_p).value
    )
    for number, array in enumerate(inputs):
        program.set_input(number, array)
    runtime_api.call("aot_program_run", program.handle)
    program.close()
    opened.close()
    return told
