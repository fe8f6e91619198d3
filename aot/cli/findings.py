"""What `aotc doctor` finds: whether this machine has what each part of aotc needs.

Owns no probe of its own where another module has one. What is missing comes with what it is for and
how to get it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from aot.base.records import dataclass
from aot.errors import AotError
from aot.version import __version__

# Packages that parts of aotc use if they are there, what for, and how to install them.
_PACKAGES = (
    ("torch", "compiling PyTorch modules and .pt2 files", "pip install 'aotc[torch]'"),
    ("onnxruntime", "aotc quantize, and comparing with it", "pip install 'aotc[quantize]'"),
    ("ai-edge-litert", "comparing TFLite models with LiteRT", "pip install ai-edge-litert"),
    ("llama-cpp-python", "comparing GGUF models with llama.cpp", "pip install llama-cpp-python"),
    ("pillow", "pictures as calibration data", "pip install 'aotc[pictures]'"),
    ("vulkan", "aotc devices on GPUs", "pip install 'aotc[vulkan]'"),
    ("ziglang", "packages as executables and for browsers", "pip install 'aotc[toolchain]'"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        area: "machine", "targets", "runtime", "gpu", "toolchains", "packages" or "caches".
        name: of what was looked for.
        found: its version, path or description; "" where it is missing.
        advice: of what is missing, what it is for and how to get it; "" where nothing is to do.
    """

    area: str
    name: str
    found: str
    advice: str = ""


def examine() -> tuple[Finding, ...]:
    """All findings on this machine, in the order of the areas. Never raises for what is missing."""
    return tuple(
        finding
        for part in (_machine, _target, _runtime, _gpus, _toolchains, _packages, _caches)
        for finding in part()
    )


def _machine() -> Iterator[Finding]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("machine", "aotc", f"{__version__} in {Path(__file__).resolve().parents[1]}")
    yield Finding("machine", "python", f"{python}, {sys.executable}")
    yield Finding("machine", "system", f"{platform.system()} {platform.release()}")
    yield Finding("machine", "processor", f"{platform.machine()}, {os.cpu_count()} logical cores")


def _target() -> Iterator[Finding]:
    from aot.target import files, selection

    try:
        yield Finding("targets", "host", selection.host().name)
    except AotError as error:
        yield Finding("targets", "host", "", str(error))
    yield Finding("targets", "shipped", f"{len(files.names())}, 'aotc targets' lists them")


def _runtime() -> Iterator[Finding]:
    from aot.runtime.loader import find_library, load_library
    from aot.runtime.runner import find_runner

    try:
        load_library()
        yield Finding("runtime", "library", str(find_library()))
    except AotError as error:
        yield Finding("runtime", "library", "", f"for aot.load and aotc run: {error}")
    try:
        yield Finding("runtime", "aot-run", str(find_runner()))
    except AotError as error:
        yield Finding("runtime", "aot-run", "", f"for aotc bench and tuning: {error}")


def _gpus() -> Iterator[Finding]:
    from aot.tools.devices import find_devices

    found, why_not = find_devices()
    for device in found:
        if device.device != "cpu":
            fits = ", ".join(device.fits[:3]) or "no target fits it"
            yield Finding("gpu", device.name, f"Vulkan {device.api_version}, {device.kind}: {fits}")
    if all(device.device == "cpu" for device in found):
        yield Finding("gpu", "Vulkan", "", why_not or "no driver lists a device: CPU targets only")


def _toolchains() -> Iterator[Finding]:
    from aot.packaging import toolchain

    ndk = os.environ.get(toolchain.NDK_VARIABLE)
    if not ndk:
        advice = f"for packages for Android: set {toolchain.NDK_VARIABLE}, or take Zig's"
        yield Finding("toolchains", "Android NDK", "", advice)
    else:
        try:
            toolchain.find_ndk(Path(ndk))
            yield Finding("toolchains", "Android NDK", ndk)
        except AotError as error:
            yield Finding("toolchains", "Android NDK", "", str(error))


def _packages() -> Iterator[Finding]:
    for name, use, how in _PACKAGES:
        try:
            yield Finding("packages", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding("packages", name, "", f"for {use}: {how}")


def _caches() -> Iterator[Finding]:
    from aot.backends.cpu import object_cache

    folder = object_cache.default_folder()
    if folder is None:
        yield Finding("caches", "compiled code", "", "no folder is known: set AOT_CACHE_DIR")
        return
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(nearest, os.W_OK):
        yield Finding("caches", "compiled code", str(folder))
    else:
        advice = f"{nearest} cannot be written, nothing is kept: set AOT_CACHE_DIR"
        yield Finding("caches", "compiled code", "", advice)
