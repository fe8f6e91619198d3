"""From a kernel to an ELF object: LLVM IR text, LLVM's optimiser, code without outside symbols.

Owns LLVM's switches: attributes that keep it from calling anything, and the passes it runs. Depends
on the kernel and the target only, so the same input gives the same bytes in any process.
"""

from __future__ import annotations

from functools import lru_cache

import llvmlite.binding as llvm

from aot.backends.cpu.assembler import Assembler
from aot.backends.cpu.memory import METADATA
from aot.backends.cpu.statements import KernelEmitter
from aot.backends.cpu.traits import Traits
from aot.errors import InternalError
from aot.kernels.ir import Kernel
from aot.target import Target

FUNCTION_NAME = "kernel"


def compile_kernel(kernel: Kernel, target: Target) -> bytes:
    """An ELF relocatable object with one exported function, `FUNCTION_NAME`, an aot_kernel_t.

    Raises:
        InternalError: the kernel breaks a rule of kernel IR, or LLVM rejects what was emitted.
    """
    with _optimised(kernel, target) as module:
        return bytes(_machine(target).emit_object(module))


def emit_llvm(kernel: Kernel, target: Target, *, is_optimised: bool = False) -> str:
    """The kernel as LLVM IR text, for dumps."""
    if not is_optimised:
        return _text(kernel, target)
    with _optimised(kernel, target) as module:
        return str(module)


def emit_assembly(kernel: Kernel, target: Target) -> str:
    """The kernel as the target's assembly text, for dumps and tests."""
    with _optimised(kernel, target) as module:
        return str(_machine(target).emit_assembly(module))


def _optimised(kernel: Kernel, target: Target) -> llvm.ModuleRef:
    text = _text(kernel, target)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        reason = str(error).strip().splitlines()
        raise InternalError(
            f"kernel {kernel.name}: llvm rejects the emitted code: {'; '.join(reason[:4])}"
        ) from error
    # The function passes of level 1: all that these kernels gain from, at half of level 2's time.
    # Loops are vectorised and unrolled by the kernel's schedule, never by LLVM.
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(_machine(target), options)
    builder.getFunctionPassManager().run(module.get_function(FUNCTION_NAME), builder)
    return module


def _text(kernel: Kernel, target: Target) -> str:
    emitter = KernelEmitter(kernel, Traits.of(target))
    emitter.run()
    asm: Assembler = emitter.asm
    out = [
        f'source_filename = "{kernel.name}"',
        f'target datalayout = "{_machine(target).target_data}"',
        f'target triple = "{target.triple}"',
        "",
    ]
    if emitter.memory.zeros_bytes:
        out.append(
            f"@zeros = private unnamed_addr constant [{emitter.memory.zeros_bytes} x i8] "
            "zeroinitializer, align 16"
        )
    if emitter.memory.opaque_masks:
        out.append("@ones = private unnamed_addr constant i64 -1, align 8")
    word = target.word_bytes
    out.append(
        f"define void @{FUNCTION_NAME}(ptr noalias noundef readonly align {word} "
        f"dereferenceable({6 * word}) %dispatch, i32 noundef %x, i32 noundef %y, "
        "i32 noundef %z) #0 {"
    )
    for block in asm.blocks:
        out.append(f"{block.label}:")
        out.extend(f"  {line}" for line in block.lines)
    out.append("}")
    out.extend(sorted(asm.declarations.values()))
    out.append(f"attributes #0 = {{ {_attributes(target)} }}")
    out.extend(METADATA)
    return "\n".join(out) + "\n"


def _attributes(target: Target) -> str:
    """What keeps a kernel self-contained: no library calls, no tables of addresses, no stack
    checks, no signal-unsafe red zone."""
    attributes = [
        "nounwind",
        "mustprogress",
        "willreturn",
        "norecurse",
        "nofree",
        "nosync",
        '"no-builtins"',
        '"no-jump-tables"="true"',
        '"frame-pointer"="none"',
        '"no-trapping-math"="true"',
    ]
    if target.arch == "x86_64":
        attributes.append("noredzone")
    if target.tune:
        attributes.append(f'"tune-cpu"="{target.tune}"')
    return " ".join(attributes)


@lru_cache(maxsize=32)
def _machine(target: Target) -> llvm.TargetMachine:
    _initialize()
    features = ",".join([*(f"+{f}" for f in target.features), *target.options])
    try:
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu,
            features=features,
            opt=2,
            reloc="pic",
            codemodel="small",
            abiname=target.abi,
        )
    except RuntimeError as error:
        raise InternalError(
            f"target {target.name}: llvm has no machine for triple {target.triple!r}: {error}"
        ) from error
    machine.set_asm_verbosity(False)
    return machine


@lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
