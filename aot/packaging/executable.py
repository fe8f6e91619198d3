"""`--format executable`: one program that contains the runtime, aot-run and the module.

Owns the compiler's command line; which compiler there is, is `toolchain`'s. The module is part of
the program's text (runtime/packaging/embedded.c), so that its code runs without being mapped.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from aot.base.records import dataclass
from aot.errors import CompileError
from aot.link.image import Arch, Device, ModuleImage
from aot.link.module import module_bytes
from aot.packaging.compiling import run_compiler
from aot.packaging.files import File, PackageInput
from aot.packaging.runtime_sources import RuntimeSources, runtime_sources
from aot.packaging.source import alignment, has_vulkan
from aot.packaging.toolchain import Toolchain, find_toolchain
from aot.version import __version__

_FLAGS = ("-std=c11", "-O2", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections")


@dataclass(frozen=True)
class ExecutableOptions:
    """Options of the formats that compile C.

    Attributes:
        compiler: the command line of a C compiler for the device; None looks for one.
    """

    compiler: str | None = None


def executable_files(
    given: PackageInput, options: ExecutableOptions
) -> tuple[list[File], dict[str, int]]:
    """(files, sizes by name) of a package with an executable.

    Raises:
        CompileError: the module is for several architectures, there is no compiler for its own, or
            it fails.
    """
    image = given.image
    toolchain = find_toolchain(_arch(image), _is_android(image), options.compiler)
    if has_vulkan(image) and toolchain.is_static:
        targets = ", ".join(v.target for v in image.variants if v.device is Device.VULKAN)
        raise CompileError(
            f"a statically linked program can't open Vulkan's library, and the module has variants "
            f"for it ({targets}): name a C compiler that links dynamically (--cc), or leave them "
            "out (--drop vulkan)"
        )
    sources = runtime_sources()
    module = module_bytes(image)
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        path, program = Path(folder) / "module.aotm", Path(folder) / "program"
        path.write_bytes(module)
        run_compiler(_command(toolchain, sources, image, path, program))
        data = program.read_bytes()
    files = [File(given.name, data, is_executable=True)]
    return files, {"module_bytes": len(module), "program_bytes": len(data)}


def _command(
    toolchain: Toolchain, sources: RuntimeSources, image: ModuleImage, module: Path, output: Path
) -> list[str]:
    has_driver = has_vulkan(image)
    names = [*sources.common, *sources.posix, *sources.threads, *sources.embedding]
    others = [*sources.tool, *(sources.text if image.vocabulary else [])]
    names += [name for name in others if name.endswith(".c")]
    names += sources.vulkan if has_driver else []
    return [
        *toolchain.command,
        *_FLAGS,
        *(["-static"] if toolchain.is_static else []),
        *(f"-I{sources.root / folder}" for folder in ("include", "src", "packaging")),
        f'-DAOT_VERSION="{__version__}"',
        "-DAOT_EMBED=1",
        f'-DAOT_MODULE_FILE="{module}"',
        f"-DAOT_MODULE_ALIGNMENT={alignment(image)}",
        *(["-DAOT_VULKAN=1"] if has_driver else []),
        *(["-DAOT_TEXT=1", "-DAOT_STATE=1"] if image.vocabulary else []),
        *(["-D_DARWIN_C_SOURCE=1"] if toolchain.is_apple else []),
        *(str(sources.root / name) for name in names),
        "-o",
        str(output),
        *([] if toolchain.is_apple else ["-Wl,--gc-sections", "-s"]),
        *toolchain.libraries,
        *(["-ldl"] if has_driver else []),
    ]


def _arch(image: ModuleImage) -> Arch:
    """The only CPU architecture of a module's variants; raises if there is not exactly one."""
    archs = {v.arch: v.target for v in image.variants if v.device is Device.CPU}
    if not archs:
        raise CompileError("an executable needs a variant for a CPU, to tell what to compile for")
    if len(archs) > 1:
        raise CompileError(
            "an executable is for one CPU architecture, the module has "
            f"{', '.join(archs.values())}: choose with --target"
        )
    return next(iter(archs))


def _is_android(image: ModuleImage) -> bool:
    return any("android" in v.target for v in image.variants if v.device is Device.CPU)
