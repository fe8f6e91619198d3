"""`--format source`: the runtime's sources and the module, as a folder that CMake builds.

Owns the folder's layout. Its CMakeLists.txt, README and example are files of the runtime,
runtime/packaging/source; which sources there are stands in package.cmake, which is written here.
"""

from __future__ import annotations

from aot.errors import CompileError
from aot.link.image import Arch, Device, ModuleImage, TensorInfo
from aot.link.module import module_bytes
from aot.packaging.files import File, PackageInput
from aot.packaging.runtime_sources import RuntimeSources, runtime_sources
from aot.version import __version__

_TEMPLATES = "packaging/source"
_LEAST_ALIGNMENT = 64  # of rodata


def source_files(given: PackageInput) -> tuple[list[File], dict[str, int]]:
    """(files, sizes by name) of a package of C sources.

    Raises:
        CompileError: the module is for WebAssembly alone, whose code no C program runs.
    """
    if all(v.arch is Arch.WASM32 for v in given.image.variants):
        raise CompileError("no C program runs code for wasm32: take --format wasm")
    sources = runtime_sources()
    image, module = given.image, f"{given.name}.aotm"
    names = [
        *sources.headers,
        *sources.common,
        *sources.posix,
        *sources.threads,
        *sources.no_os,
        *sources.embedding,
        *sources.vulkan,
        *(sources.text if image.vocabulary else []),
    ]
    data = module_bytes(image)
    readme = sources.read(f"{_TEMPLATES}/README.md").decode()
    readme = readme.replace("@NAME@", given.name).replace("@CONTENTS@", contents(given))
    files = [
        File("CMakeLists.txt", sources.read(f"{_TEMPLATES}/CMakeLists.txt")),
        File("README.md", readme.encode()),
        File("main.c", sources.read(f"{_TEMPLATES}/main.c")),
        File("package.cmake", _cmake_facts(sources, image, module).encode()),
        File(module, data),
        *(File(name, sources.read(name)) for name in names),
    ]
    return files, {"module_bytes": len(data)}


def alignment(image: ModuleImage) -> int:
    """The alignment in memory that a module's code needs to run in place."""
    pages = [v.page_bytes for v in image.variants if v.device is Device.CPU]
    return max(pages, default=_LEAST_ALIGNMENT)


def has_vulkan(image: ModuleImage) -> bool:
    return any(v.device is Device.VULKAN for v in image.variants)


def contents(given: PackageInput) -> str:
    """A Markdown list of the module's entry points and targets."""
    lines = []
    for entry in given.image.variants[0].entry_points:
        inputs = ", ".join(map(_tensor_text, entry.inputs)) or "nothing"
        outputs = ", ".join(map(_tensor_text, entry.outputs)) or "nothing"
        lines.append(f"- entry point `{entry.name}`: `{inputs}` to `{outputs}`")
    targets = ", ".join(variant.target for variant in given.image.variants)
    return "\n".join([*lines, f"- made for: {targets}"])


def _tensor_text(tensor: TensorInfo) -> str:
    """The name, type and shape of a tensor, with the upper bounds of dynamic dims."""
    dims = (
        str(d) if d.extent is not None or d.maximum is None else f"{d}<={d.maximum}"
        for d in tensor.dims
    )
    return f"{tensor.name}: {tensor.dtype}[{', '.join(dims)}]"


def _text(sources: RuntimeSources, image: ModuleImage) -> list[str]:
    """The additional C files that a language model's program needs; empty for other models."""
    return [name for name in sources.text if name.endswith(".c") and image.vocabulary]


def _cmake_facts(sources: RuntimeSources, image: ModuleImage, module: str) -> str:
    lists = {
        "SOURCES": sources.common + _text(sources, image),
        "POSIX_SOURCES": sources.posix,
        "NO_OS_SOURCES": sources.no_os,
        "THREAD_SOURCES": sources.threads,
        "VULKAN_SOURCES": sources.vulkan,
    }
    lines = [
        "# What is in this folder; written by aotc package.",
        f'set(AOT_PACKAGE_VERSION "{__version__}")',
        f'set(AOT_PACKAGE_MODULE "{module}")',
        f"set(AOT_PACKAGE_ALIGNMENT {alignment(image)})",
        f"set(AOT_PACKAGE_HAS_VULKAN {'ON' if has_vulkan(image) else 'OFF'})",
    ]
    for name, files in lists.items():
        lines += [f"set(AOT_PACKAGE_{name}", *(f"  {file}" for file in files), ")"]
    return "\n".join([*lines, ""])
