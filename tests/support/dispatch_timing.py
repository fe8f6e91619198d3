"""Times executables by themselves: one dispatch's kernel on memory of its own, in this process.

    clock(target, [(function, dims), ...], rounds)    medians of seconds, taken in turn

Owns the loop over the grid, which is machine code like the runtime's, and where operands lie. For
benchmarks and calibration: no test depends on time.
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from aot.backends.cpu.compile import compile_kernel
from aot.backends.cpu.scratch import scratch_bytes
from aot.ir.dims import Dim, evaluate
from aot.ir.graph import Function
from aot.kernels.ir.nodes import Kernel
from aot.kernels.lowering import lower
from aot.link.code_image import link_image
from aot.target.model import Target
from tests.support.cpu_running import CLASSES

# what a round of one dispatch should take at least, in seconds, for the clock to say anything
LEAST = 2e-4

_LOOP = """
define void @loop(ptr %kernel, ptr %dispatch, i32 %x, i32 %y, i32 %z, i64 %times) {
start:
  br label %again
again:
  %n = phi i64 [ 0, %start ], [ %n1, %next ]
  br label %a
a:
  %k = phi i32 [ 0, %again ], [ %k1, %a2 ]
  br label %b
b:
  %j = phi i32 [ 0, %a ], [ %j1, %b2 ]
  br label %c
c:
  %i = phi i32 [ 0, %b ], [ %i1, %c ]
  call void %kernel(ptr %dispatch, i32 %i, i32 %j, i32 %k)
  %i1 = add i32 %i, 1
  %ci = icmp ult i32 %i1, %x
  br i1 %ci, label %c, label %b2
b2:
  %j1 = add i32 %j, 1
  %cj = icmp ult i32 %j1, %y
  br i1 %cj, label %b, label %a2
a2:
  %k1 = add i32 %k, 1
  %ck = icmp ult i32 %k1, %z
  br i1 %ck, label %a, label %next
next:
  %n1 = add i64 %n, 1
  %cn = icmp ult i64 %n1, %times
  br i1 %cn, label %again, label %end
end:
  ret void
}
"""


@cache
def _loop() -> tuple[object, int]:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_LOOP), machine)
    engine.finalize_object()
    return engine, engine.get_function_address("loop")


class Timed:
    """A kernel with its operands, which may be run any number of times.

    Attributes:
        kernel: what is run.
        buffers: the bytes of each operand, then of each result, in the kernel's order.
        code_bytes: size of its code.
    """

    def __init__(
        self,
        function: Function,
        dims: Mapping[str, Dim],
        target: Target,
        compile_with: Callable[[Kernel, Target], bytes] = compile_kernel,
    ) -> None:
        """`compile_with` gives a kernel's object, as `compile_kernel` does."""
        self.kernel: Kernel = lower(function, target)
        image = link_image([compile_with(self.kernel, target)], target)
        self.code_bytes = len(image.data)
        self._code = mmap.mmap(
            -1, len(image.data), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
        self._code.write(image.data)
        entry = ctypes.addressof(ctypes.c_char.from_buffer(self._code)) + image.entries[0]
        values = {name: int(dim) for name, dim in dims.items() if isinstance(dim, int)}
        sizes = dict.fromkeys(CLASSES, 0)
        words: list[int] = []
        ends: list[int] = []
        names: list[str] = []
        for buffer in self.kernel.buffers:
            name = buffer.binding.name.lower()
            if buffer.class_param is not None:
                name = CLASSES[values[buffer.class_param.name]]
            names.append(name)
            words.append(sizes[name])
            (elements,) = (evaluate(d, values) for d in buffer.shape)
            ends.append(sizes[name] + buffer.dtype.storage_bytes(elements))
            sizes[name] += -(-buffer.dtype.storage_bytes(elements) // 64) * 64 + 64
        memory = {name: _aligned(size) for name, size in sizes.items()}
        self.buffers = [
            memory[name][start:end] for name, start, end in zip(names, words, ends, strict=True)
        ]
        words += [values[name] for name in function.dim_names]
        self.memory = list(memory.values())
        self._params = np.array(words, np.uint64)
        self._scratch = _aligned(scratch_bytes(self.kernel, target) + 64)
        pointers = [m.ctypes.data for m in self.memory]
        pointers += [self._params.ctypes.data, self._scratch.ctypes.data]
        self._dispatch = (ctypes.c_void_p * 6)(*pointers)
        x, y, z = (evaluate(d, values) for d in self.kernel.grid)
        signature = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_uint32] * 3, ctypes.c_uint64
        )
        loop = signature(_loop()[1])
        self._loop = partial(loop, entry, self._dispatch, x, y, z)

    def run(self, times: int) -> None:
        self._loop(times)

    def seconds(self, times: int) -> float:
        start = time.thread_time()
        self.run(times)
        return (time.thread_time() - start) / times


def _aligned(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bytes that start a cache line and are small positive numbers as f32."""
    whole = np.frombuffer(np.full(size // 4 + 32, 0.25, np.float32), np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


def clock(
    target: Target, given: Sequence[tuple[Function, Mapping[str, Dim]]], rounds: int = 15
) -> list[float]:
    """Median seconds of one dispatch of each, over `rounds` in which each has its turn."""
    timed = [Timed(function, dims, target) for function, dims in given]
    return clock_timed(timed, rounds)


def clock_timed(
    timed: Sequence[Timed],
    rounds: int = 15,
    pick: Callable[[Sequence[float]], float] = statistics.median,
) -> list[float]:
    """As `clock`, of kernels that are there; `pick` chooses one of the rounds."""
    times = [max(1, int(LEAST / max(t.seconds(3), 1e-7))) for t in timed]
    found: list[list[float]] = [[] for _ in timed]
    for _ in range(rounds):
        for number, (one, count) in enumerate(zip(timed, times, strict=True)):
            found[number].append(one.seconds(count))
    return [pick(f) for f in found]
