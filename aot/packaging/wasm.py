"""`--format wasm`: a module with its loader, for browsers and Node.

Owns the folder's layout and the command line that makes the runtime a WebAssembly module; which
compiler there is, is `toolchain`'s. The JavaScript is runtime/packaging/wasm's, and the same for
every model but for names.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from aot.errors import CompileError
from aot.link.image import Arch, EntryPointImage, TensorInfo
from aot.link.module import module_bytes
from aot.packaging.compiling import run_compiler
from aot.packaging.files import File, PackageInput
from aot.packaging.runtime_sources import RuntimeSources, runtime_sources
from aot.packaging.toolchain import Toolchain, find_wasm_toolchain
from aot.version import __version__

_FOLDER = "packaging/wasm"
_RUNTIME = "aot_runtime.wasm"
_STACK_BYTES = 131072  # of the runtime and of the kernels' own arrays, at most 16 KiB each
_FLAGS = ("-std=c11", "-Os", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections")
# What aot_runtime.mjs calls and takes
_EXPORTS = (
    "__stack_pointer",
    "aot_module_metadata_count",
    "aot_module_metadata_key",
    "aot_module_metadata_value",
    "aot_module_open_memory",
    "aot_module_variant_count",
    "aot_module_variant_target",
    "aot_program_create",
    "aot_program_destroy",
    "aot_program_get_output",
    "aot_program_input_count",
    "aot_program_input_info",
    "aot_program_output_count",
    "aot_program_output_info",
    "aot_program_reset",
    "aot_program_run",
    "aot_program_set_input",
    "aot_status_name",
    "aot_wasm_allocate",
    "aot_wasm_entry_name",
    "aot_wasm_get_code",
    "aot_wasm_interface",
    "aot_wasm_release",
)
# What aot_text.mjs calls
_TEXT_EXPORTS = (
    "aot_chat_render",
    "aot_chat_tokens",
    "aot_encode",
    "aot_program_capacity",
    "aot_program_length",
    "aot_program_rewind",
    "aot_rendered_release",
    "aot_reply_create",
    "aot_reply_destroy",
    "aot_reply_finish",
    "aot_reply_get_info",
    "aot_reply_next",
    "aot_sampler_accept",
    "aot_sampler_create",
    "aot_sampler_destroy",
    "aot_sampler_reset",
    "aot_vocabulary_close",
    "aot_vocabulary_get_info",
    "aot_vocabulary_get_prefix",
    "aot_vocabulary_open",
)
_TEXT = "aot_text.mjs"


def wasm_files(given: PackageInput, compiler: str | None) -> tuple[list[File], dict[str, int]]:
    """(files, sizes by name) of a package for WebAssembly.

    Args:
        compiler: the command line of a C compiler; None looks for one.

    Raises:
        CompileError: the module has no variant for WebAssembly; there is no compiler, or it fails.
    """
    variants = tuple(v for v in given.image.variants if v.arch is Arch.WASM32)
    if not variants:
        names = ", ".join(v.target for v in given.image.variants)
        raise CompileError(
            f"a wasm package needs a variant for WebAssembly, the module has {names}: compile it "
            "with --target wasm32"
        )
    sources = runtime_sources()
    has_text = bool(given.image.vocabulary)
    runtime = runtime_bytes(sources, find_wasm_toolchain(compiler), has_text=has_text)
    module = module_bytes(replace(given.image, variants=variants))
    loader = sources.read(f"{_FOLDER}/model.mjs.in").decode()
    for mark, text in {
        "NAME": given.name,
        "VERSION": __version__,
        "TARGETS": ", ".join(json.dumps(v.target).strip('"') for v in variants),
        "BYTES": str(len(module)),
        "CONTENTS": "\n".join(_contents(variants[0].entry_points)),
        "FILES": f"aot_runtime.mjs, {_RUNTIME}{f', {_TEXT}' * has_text} and {given.name}.aotm",
        "TEXT": f'export {{ Chat }} from "./{_TEXT}";\n' if has_text else "",
    }.items():
        loader = loader.replace(f"@{mark}@", text)
    files = [
        File(f"{given.name}.mjs", loader.encode()),
        File(f"{given.name}.aotm", module),
        File("aot_runtime.mjs", sources.read(f"{_FOLDER}/aot_runtime.mjs")),
        File(_RUNTIME, runtime),
    ]
    if has_text:
        files.append(File(_TEXT, sources.read(f"{_FOLDER}/{_TEXT}")))
    facts = {
        "module_bytes": len(module),
        "kernels_bytes": sum(len(v.code) for v in variants),
        "runtime_bytes": len(runtime),
    }
    return files, facts


def runtime_bytes(sources: RuntimeSources, toolchain: Toolchain, *, has_text: bool) -> bytes:
    """The runtime compiled to WebAssembly; there is one version for language models and one for all
    other models."""
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        output = Path(folder) / _RUNTIME
        run_compiler(_command(sources, toolchain, output, has_text=has_text))
        return output.read_bytes()


def _command(
    sources: RuntimeSources, toolchain: Toolchain, output: Path, *, has_text: bool
) -> list[str]:
    names = [*sources.common, *sources.no_os, f"{_FOLDER}/aot_wasm.c"]
    if has_text:
        names += [name for name in sources.text if name.endswith(".c")]
        names += [f"{_FOLDER}/aot_text.c"]
    exports = [*_EXPORTS, *(_TEXT_EXPORTS if has_text else ())]
    linking = ["--gc-sections", "--export-table", "--growable-table"]
    linking += [f"-z,stack-size={_STACK_BYTES}", *(f"--export={name}" for name in exports)]
    return [
        *toolchain.command,
        "-mexec-model=reactor",
        *_FLAGS,
        *(f"-I{sources.root / folder}" for folder in ("include", "src", "packaging", _FOLDER)),
        f'-DAOT_VERSION="{__version__}"',
        "-DAOT_NO_OS=1",
        "-DAOT_THREADS=0",
        *(str(sources.root / name) for name in names),
        "-o",
        str(output),
        "-s",
        *(f"-Wl,{option}" for option in linking),
        *toolchain.libraries,
    ]


def _contents(entries: Sequence[EntryPointImage]) -> Iterator[str]:
    """Comment lines that list entry points and tensors. Names are quoted, as they may contain any
    characters."""
    for entry in entries:
        yield f"// {json.dumps(entry.name)}:"
        for kind, tensors in (("input", entry.inputs), ("output", entry.outputs)):
            yield from (f"//   {kind} {_tensor_text(tensor)}" for tensor in tensors)


def _tensor_text(tensor: TensorInfo) -> str:
    dims = (
        str(d) if d.extent is not None or d.maximum is None else f"{d}<={d.maximum}"
        for d in tensor.dims
    )
    return f"{json.dumps(tensor.name)} {tensor.dtype}[{', '.join(dims)}]"
