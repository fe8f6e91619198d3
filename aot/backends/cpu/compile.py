"""Compiles a kernel to LLVM IR text, and with LLVM to an ELF object without undefined symbols.

Owns the module around a kernel's code: attributes that keep LLVM from calling anything. Depends on
the kernel and the target only, so the same input gives the same bytes in any process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from aot.backends.cpu import llvm
from aot.backends.cpu.assembler import Assembler
from aot.backends.cpu.memory import METADATA
from aot.backends.cpu.statements import KernelEmitter
from aot.backends.cpu.traits import Traits
from aot.errors import InternalError
from aot.kernels.ir.nodes import Kernel
from aot.target.model import Target

FUNCTION_NAME = "kernel"
# By architecture, addresses counted from one start that loop strength reduction is not shown one by
# one: it takes a quarter of the time, and less leaves it less. On AArch64, whose loads move their
# pointer on, it finds better loops.
_MANY_ADDRESSES = {"x86_64": 12, "arm": 4}


def compile_kernel(kernel: Kernel, target: Target) -> bytes:
    """An ELF relocatable object with one exported function, `FUNCTION_NAME`, an aot_kernel_t.

    Raises:
        InternalError: the kernel breaks a rule of kernel IR, or LLVM rejects what was emitted.
    """
    return to_object(kernel.name, to_llvm(kernel, target), target)


def to_object(name: str, text: str, target: Target) -> bytes:
    """The object compiled from the text of `to_llvm`; `name` is the kernel's, for messages.

    Raises:
        InternalError: LLVM rejects the text or the target.
    """
    with blaming(name, target):
        return llvm.to_object(text, machine_of(target), FUNCTION_NAME)


def emit_llvm(kernel: Kernel, target: Target, *, is_optimised: bool = False) -> str:
    """The kernel as LLVM IR text, for dumps."""
    text = to_llvm(kernel, target)
    if not is_optimised:
        return text
    with (
        blaming(kernel.name, target),
        llvm.optimise(text, machine_of(target), FUNCTION_NAME) as module,
    ):
        return str(module)


def emit_assembly(kernel: Kernel, target: Target) -> str:
    """The kernel as the target's assembly text, for dumps and tests."""
    with blaming(kernel.name, target):
        return llvm.to_assembly(to_llvm(kernel, target), machine_of(target), FUNCTION_NAME)


@contextmanager
def blaming(name: str, target: Target) -> Iterator[None]:
    """A context that turns an error of LLVM into one that names the kernel and the target."""
    try:
        yield
    except llvm.RejectedError as error:
        raise InternalError(
            f"kernel {name} for {target.name}: llvm rejects the emitted code: {error}"
        ) from error


def machine_of(target: Target) -> llvm.Machine:
    """LLVM's description of a target."""
    features = ",".join([*(f"+{f}" for f in target.features), *target.options])
    return llvm.Machine(target.triple, target.cpu, features, target.abi)


def to_llvm(kernel: Kernel, target: Target) -> str:
    """The module text of a kernel. It does not contain the kernel's name, so that equal kernels
    give equal objects."""
    emitter = KernelEmitter(kernel, Traits.of(target))
    emitter.run()
    asm: Assembler = emitter.asm
    out = [f'source_filename = "{FUNCTION_NAME}"', f'target triple = "{target.triple}"', ""]
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
    many = _MANY_ADDRESSES.get(target.arch, inf)
    for block in asm.blocks:
        out.append(f"{block.label}:")
        out.extend(f"  {line}" for line in block.text(many))
    out.append("}")
    out.extend(sorted(asm.declarations.values()))
    out.append(f"attributes #0 = {{ {_attributes(target)} }}")
    out.extend(METADATA)
    return "\n".join(out) + "\n"


def _attributes(target: Target) -> str:
    """Function attributes that keep a kernel self-contained: no library calls, no jump tables, no
    stack checks, no red zone.
    """
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
