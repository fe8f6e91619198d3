"""Ahead-of-time compiler for trained models: the public API.

    module = aot.compile("model.onnx", targets=["host"])
    module.save("model.aotm")
    program = aot.load("model.aotm", device="cpu")
    outputs = program({"x": array})  # name -> array

Compile and run
    compile(model, ...)     a file, a torch.nn.Module or a graph -> CompiledModule
    load(module, device)    a file, its bytes or a CompiledModule -> Program, which is called
    merge(modules)          several modules -> one that shares code and constants
    package(module, format, folder)  sources in C, a program, a static library, or WebAssembly
    targets()               the targets that come with the compiler

Look and measure
    inspect(module)         what a file has, as plain data
    verify(module, model)   both on the same inputs -> Verification
    verify_text(module, model)  a language module and f32 on a text -> TextVerification
    bench(module)           times of runs and of each dispatch
    explain_fusion(model)   which ops became one kernel, and why no more
    devices()               the CPU and the GPUs here

Quantise
    quantize(model, output, calibration)  float32 -> 8 or 4 bits -> Quantised
    Pictures                how pixels become numbers, where calibration data are pictures

Language models
    generate(program, prompt)  a reply, in pieces
    Chat(program)           a conversation
    embed(program, texts)   embeddings

Options of compile, in groups: Precision, Tuning, Debugging, Resources, LanguageModel.
Graphs without a model file: builder.
Errors: AotError, and of it CompileError (the model or an option is wrong), UnsupportedError (what
the compiler lacks), RuntimeFailure (the runtime refused) and InternalError (a bug of ours).

`help(aot.compile)` has all options. Importing this is cheap: the compiler is imported when it is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aot.errors import AotError, CompileError, InternalError, RuntimeFailure, UnsupportedError
from aot.version import __version__

if TYPE_CHECKING:
    from aot import builder
    from aot.api import (
        CompiledModule,
        Debugging,
        LanguageModel,
        Precision,
        Resources,
        Tuning,
        compile,
        load,
        targets,
    )
    from aot.packaging import package
    from aot.runtime.loader import Program
    from aot.text.embedding import embed
    from aot.text.generation import Chat, generate
    from aot.tools.bench.benchmark import bench
    from aot.tools.devices import devices
    from aot.tools.explain_fusion import explain_fusion
    from aot.tools.inspection import inspect
    from aot.tools.merging import merge
    from aot.tools.pictures import Pictures
    from aot.tools.quantisation import Quantised, quantize
    from aot.tools.text_verification import TextVerification, verify_text
    from aot.tools.verification import Verification, verify

__all__ = [
    "AotError",
    "Chat",
    "CompileError",
    "CompiledModule",
    "Debugging",
    "InternalError",
    "LanguageModel",
    "Pictures",
    "Precision",
    "Program",
    "Quantised",
    "Resources",
    "RuntimeFailure",
    "TextVerification",
    "Tuning",
    "UnsupportedError",
    "Verification",
    "__version__",
    "bench",
    "builder",
    "compile",
    "devices",
    "embed",
    "explain_fusion",
    "generate",
    "inspect",
    "load",
    "merge",
    "package",
    "quantize",
    "targets",
    "verify",
    "verify_text",
]

_WHERE = {
    "bench": "aot.tools.bench.benchmark",
    "devices": "aot.tools.devices",
    "Chat": "aot.text.generation",
    "CompiledModule": "aot.api",
    "Debugging": "aot.api",
    "LanguageModel": "aot.api",
    "Precision": "aot.api",
    "Pictures": "aot.tools.pictures",
    "Program": "aot.runtime.loader",
    "Quantised": "aot.tools.quantisation",
    "Resources": "aot.api",
    "TextVerification": "aot.tools.text_verification",
    "Tuning": "aot.api",
    "Verification": "aot.tools.verification",
    "compile": "aot.api",
    "embed": "aot.text.embedding",
    "explain_fusion": "aot.tools.explain_fusion",
    "generate": "aot.text.generation",
    "inspect": "aot.tools.inspection",
    "load": "aot.api",
    "merge": "aot.tools.merging",
    "package": "aot.packaging",
    "quantize": "aot.tools.quantisation",
    "targets": "aot.api",
    "verify": "aot.tools.verification",
    "verify_text": "aot.tools.text_verification",
}


def __getattr__(name: str) -> Any:
    if name == "builder":
        return importlib.import_module("aot.builder")
    if name not in _WHERE:
        raise AttributeError(f"module 'aot' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
