"""Runs LLVM: IR text to an object or assembly, in this process or as another one's worker.

Owns LLVM's switches and passes. Imports nothing of `aot`, and LLVM only when it is first used: as a
script, this file is the worker that `workers.py` starts, and starting must cost little.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import llvmlite.binding as llvm

READY, REQUEST, DONE, REJECTED = b"r", b"q", b"d", b"x"
_HEADER = struct.Struct(">cI")
# Two thirds of the passes' time for nothing: what they would simplify, kernel IR has not, or the
# code generator finds again. Kernels are as fast without, and as small
# (`docs/internals/compile-time.md`).
_LEFT_OUT = ("indvars", "instcombine", "loop-instsimplify")


class Machine(NamedTuple):
    """LLVM's description of a machine to generate code for."""

    triple: str
    cpu: str
    features: str
    abi: str


class RejectedError(Exception):
    """LLVM rejects the text or the machine; the message is LLVM's, on one line."""


def is_loaded() -> bool:
    """Whether LLVM is loaded in this process."""
    return "llvmlite" in sys.modules


def to_object(text: str, machine: Machine, function: str) -> bytes:
    """The ELF object of a module of text IR, whose `function` is optimised first.

    Raises:
        RejectedError: the text is no valid IR, or LLVM has no such machine.
    """
    with optimise(text, machine, function) as module:
        return bytes(_machine(machine).emit_object(module))


def to_assembly(text: str, machine: Machine, function: str) -> str:
    """The assembly text of a function's machine code."""
    with optimise(text, machine, function) as module:
        return str(_machine(machine).emit_assembly(module))


def optimise(text: str, machine: Machine, function: str) -> llvm.ModuleRef:
    """The module after LLVM's passes over `function`; the caller closes it."""
    import llvmlite.binding as llvm

    made = _machine(machine)
    try:
        module = llvm.parse_assembly(f'target datalayout = "{made.target_data}"\n{text}')
        module.verify()
    except RuntimeError as error:
        raise RejectedError("; ".join(str(error).strip().splitlines()[:4])) from error
    # The function passes of level 1, less `_LEFT_OUT`: all that these kernels gain from. Loops are
    # vectorised and unrolled by the kernel's schedule, never by LLVM.
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(made, options)
    builder.getFunctionPassManager().run(module.get_function(function), builder)
    return module


@lru_cache(maxsize=32)
def _machine(machine: Machine) -> llvm.TargetMachine:
    import llvmlite.binding as llvm

    _initialize()
    try:
        made = llvm.Target.from_triple(machine.triple).create_target_machine(
            cpu=machine.cpu,
            features=machine.features,
            opt=2,
            reloc="pic",
            codemodel="small",
            abiname=machine.abi,
        )
    except RuntimeError as error:
        raise RejectedError(f"no machine for triple {machine.triple!r}: {error}") from error
    made.set_asm_verbosity(False)
    return made


@lru_cache(maxsize=1)
def _initialize() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # LLVM has no other way, so that it holds for whoever else uses LLVM in this process.
    llvm.set_option("aotc", f"-opt-disable={','.join(_LEFT_OUT)}")


# The worker. Either side sends frames: a kind, a length, and that many bytes.


def send(stream: IO[bytes], kind: bytes, data: bytes) -> None:
    """Writes one frame to a stream: kind, length, data."""
    stream.write(_HEADER.pack(kind, len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Reads one frame; None at the end of the stream."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    kind, length = _HEADER.unpack(header)
    data = stream.read(length)
    return (kind, data) if len(data) == length else None


def request(text: str, machine: Machine, function: str) -> bytes:
    """The data of a frame that requests an object from a worker."""
    return json.dumps([*machine, function]).encode() + b"\n" + text.encode()


def _answer(data: bytes) -> tuple[bytes, bytes]:
    head, _, text = data.partition(b"\n")
    *machine, function = json.loads(head)
    try:
        return DONE, to_object(text.decode(), Machine(*machine), function)
    except RejectedError as error:
        return REJECTED, str(error).encode()


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answers requests until the stream ends."""
    _initialize()
    send(sink, READY, b"")
    while (asked := receive(source)) is not None:
        send(sink, *_answer(asked[1]))


def _main(arguments: list[str]) -> Any:
    # An interrupt is the parent's to handle: it closes the pipe, which ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.append(arguments[0])
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    _main(sys.argv[1:])
