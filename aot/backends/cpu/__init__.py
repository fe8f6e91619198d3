"""The CPU backend: kernel IR to ELF objects through LLVM, one function each, nothing undefined.

Public: `compile_kernel`, `emit_llvm`, `emit_assembly`, `scratch_bytes`.
"""

from aot.backends.cpu.compile import compile_kernel, emit_assembly, emit_llvm
from aot.backends.cpu.scratch import scratch_bytes

__all__ = ["compile_kernel", "emit_assembly", "emit_llvm", "scratch_bytes"]
