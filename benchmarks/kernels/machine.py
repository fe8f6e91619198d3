"""What one core of this machine can do, measured in the thread and by the clock that kernels are.

Owns the loops that are measured. They are short, so that they can be measured again between
kernels: other work on the machine slows both. The best of several samples counts.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

import aot
from aot.analysis.cost.candidates import Choice
from aot.builder import Builder
from aot.driver.variant import build_image
from aot.ir.graph import FunctionRef
from aot.link.module import module_bytes
from aot.options import CompileOptions
from aot.passes.base import PassContext, run_passes
from aot.passes.order import MODEL_PASSES, TARGET_PASSES
from aot.target.model import Target
from aot.tuning.module import Sized, comparing_module

# iterations of an arithmetic loop, some tens of microseconds
ITERATIONS = 4_000
SAMPLES = 4
# bytes that a sample of reading reads at least
READ_BYTES = 1 << 20
# independent chains: they hide the latency of two units of four cycles and more
CHAINS = 12
# where the system does not tell: what a desktop has
USUAL_CACHES = (32 << 10, 512 << 10, 8 << 20)
MEMORY_BYTES = 128 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Peaks:
    """Attributes:
    operations: multiply-adds of four bytes a second, in vectors as the target's.
    divisions: divisions a second, in such vectors.
    latency: seconds from one addition to the next that needs its result.
    launch: seconds that the runtime takes for a dispatch that computes one element.
    reads: bytes of a cache, smallest first, and bytes a second read from it; the last entry is
        memory.
    products: multiply-adds of bytes in i32 a second, by the target's instructions for them; 0 where
        it has none.
    """

    operations: float
    divisions: float
    latency: float
    launch: float
    reads: tuple[tuple[int, float], ...]
    products: float = 0.0

    def read_speed(self, size: int) -> float:
        """Bytes a second of the level that holds `size` bytes."""
        return next((s for held, s in self.reads if size <= held), self.reads[-1][1])

    def best(self, other: Peaks) -> Peaks:
        """Of both, what is faster."""
        return Peaks(
            max(self.operations, other.operations),
            max(self.divisions, other.divisions),
            min(self.latency, other.latency),
            min(self.launch, other.launch),
            tuple(
                (size, max(a, b)) for (size, a), (_, b) in zip(self.reads, other.reads, strict=True)
            ),
            max(self.products, other.products),
        )


@dataclass(frozen=True)
class Products:
    """An instruction that sums products of bytes, or of pairs of 16 bits.

    Attributes:
        name: LLVM's intrinsic.
        lanes: words of a vector.
        terms: products of a word.
        accumulates: whether it adds to a sum; else an addition follows.
    """

    name: str
    lanes: int
    terms: int
    accumulates: bool

    @staticmethod
    def of(target: Target) -> Products | None:
        """The one that a target's kernels of integers use, where this knows one."""
        if target.has("avx512vnni"):
            return Products("llvm.x86.avx512.vpdpbusd.512", 16, 4, True)
        if target.has("avxvnni"):
            return Products("llvm.x86.avx512.vpdpbusd.256", 8, 4, True)
        if target.arch == "aarch64" and target.has("dotprod"):
            return Products("llvm.aarch64.neon.sdot.v4i32.v16i8", 4, 4, True)
        if target.has("avx512bw"):
            return Products("llvm.x86.avx512.pmaddw.d.512", 16, 2, False)
        if target.has("avx2"):
            return Products("llvm.x86.avx2.pmadd.wd", 8, 2, False)
        return None

    def text(self) -> str:
        """A loop of them, whose operands vary so that none is taken out of it."""
        vector = f"<{self.lanes} x i32>"
        part = f"<{self.lanes * self.terms} x i{32 // self.terms}>"
        operands = [part, part] if not self.accumulates else [vector, part, part]
        values = f"{part} %c$k, {part} %c$k"
        if self.accumulates:
            step = f"  %b$k = call {vector} @{self.name}({vector} %a$k, {values})"
        else:
            step = (
                f"  %p$k = call {vector} @{self.name}({values})\n  %b$k = add {vector} %a$k, %p$k"
            )
        step = f"  %c$k = bitcast {vector} %a$k to {part}\n{step}"
        declared = f"declare {vector} @{self.name}({', '.join(operands)})"
        return declared + _loop("sum_products", vector, CHAINS, step, "add")


def cache_sizes(folder: Path = _CACHES) -> tuple[int, ...]:
    """Bytes of this core's caches for data, smallest first."""
    found = []
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            text = (index / "size").read_text().strip()
        except OSError:
            continue
        if kind in ("Data", "Unified") and text[:-1].isdigit() and text[-1] in _UNITS:
            found.append(int(text[:-1]) * _UNITS[text[-1]])
    return tuple(sorted(set(found))) or USUAL_CACHES


def _loop(name: str, vector: str, chains: int, step: str, add: str = "fadd") -> str:
    """`void name(n, vector *out)`: n steps of each of some chains, which start at out's vector."""
    phis = "\n".join(f"  %a{k} = phi {vector} [ %v, %0 ], [ %b{k}, %loop ]" for k in range(chains))
    steps = "\n".join(step.replace("$k", str(k)) for k in range(chains))
    sums = ["%b0"]
    adds = []
    for k in range(1, chains):
        adds.append(f"  %s{k} = {add} {vector} {sums[-1]}, %b{k}")
        sums.append(f"%s{k}")
    return f"""
define void @{name}(i64 %n, ptr %out) {{
  %v = load {vector}, ptr %out
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %i1, %loop ]
{phis}
{steps}
  %i1 = add i64 %i, 1
  %c = icmp ult i64 %i1, %n
  br i1 %c, label %loop, label %end
end:
{chr(10).join(adds)}
  store {vector} {sums[-1]}, ptr %out
  ret void
}}
"""


def _text(lanes: int) -> str:
    """The loops in LLVM IR, for vectors of `lanes` floats."""
    vector = f"<{lanes} x float>"
    kind = f"v{lanes}f32"
    fma = f"  %b$k = call {vector} @llvm.fmuladd.{kind}({vector} %a$k, {vector} %v, {vector} %v)"
    words = f"<{lanes} x i32>"
    loads = "\n".join(
        f"  %p{k} = getelementptr {words}, ptr %at, i64 {k}\n"
        f"  %x{k} = load {words}, ptr %p{k}\n"
        f"  %b{k} = xor {words} %a{k}, %x{k}"
        for k in range(8)
    )
    phis = "\n".join(f"  %a{k} = phi {words} [ %w, %again ], [ %b{k}, %loop ]" for k in range(8))
    mixed = "\n".join(
        f"  %s{k} = xor {words} {'%b0' if k == 1 else f'%s{k - 1}'}, %b{k}" for k in range(1, 8)
    )
    return f"""
declare {vector} @llvm.fmuladd.{kind}({vector}, {vector}, {vector})
{_loop("multiply_add", vector, CHAINS, fma)}
{_loop("divide", vector, CHAINS, f"  %b$k = fdiv {vector} %a$k, %v")}
{_loop("chain", vector, 1, f"  %b$k = fadd {vector} %a$k, %v")}
define void @read(ptr %data, i64 %bytes, i64 %times, ptr %out) {{
  %v = load {words}, ptr %out
  br label %again
again:
  %n = phi i64 [ 0, %0 ], [ %n1, %next ]
  %w = phi {words} [ %v, %0 ], [ %s7, %next ]
  br label %loop
loop:
  %i = phi i64 [ 0, %again ], [ %i1, %loop ]
{phis}
  %at = getelementptr i8, ptr %data, i64 %i
{loads}
  %i1 = add i64 %i, {32 * lanes}
  %c = icmp ult i64 %i1, %bytes
  br i1 %c, label %loop, label %next
next:
{mixed}
  %n1 = add i64 %n, 1
  %d = icmp ult i64 %n1, %times
  br i1 %d, label %again, label %end
end:
  store {words} %s7, ptr %out
  ret void
}}
"""


@dataclass(eq=False)
class Machine:
    """Measures this machine for kernels of a target."""

    target: Target
    _functions: dict[str, Callable[..., None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self.lanes = max(1, self.target.vector_bytes // 4)
        host = llvm.get_host_cpu_features()
        features = ",".join(f"+{name}" for name in self.target.features if host.get(name))
        made = llvm.Target.from_default_triple().create_target_machine(
            features=features, opt=2, jit=True
        )
        text = _text(self.lanes)
        self._products = Products.of(self.target)
        if self._products is not None:
            text += self._products.text()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), made)
        self._engine.finalize_object()
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        for name, types in {
            "multiply_add": (integer, pointer),
            "divide": (integer, pointer),
            "chain": (integer, pointer),
            "read": (pointer, integer, integer, pointer),
            **({} if self._products is None else {"sum_products": (integer, pointer)}),
        }.items():
            address = self._engine.get_function_address(name)
            self._functions[name] = ctypes.CFUNCTYPE(None, *types)(address)
        self._vector = _aligned(256).view(np.float32)
        # half of a cache: the other half is what else is in it
        self._levels = [(size, size // 2) for size in cache_sizes()]
        self._levels.append((MEMORY_BYTES, MEMORY_BYTES))
        self._memory = _aligned(MEMORY_BYTES)
        self._launches = Launches(self.target)

    def sample(self, *, with_memory: bool = True) -> Peaks:
        """Measures all once, in some milliseconds; `with_memory` some tens more."""
        lanes, vector = self.lanes, self._vector.ctypes.data

        def each(name: str, chains: int) -> float:
            run, found = self._functions[name], []
            for _ in range(SAMPLES):
                self._vector[:] = 0.999
                found.append(_seconds(partial(run, ITERATIONS, vector)))
            return min(found) / (ITERATIONS * chains)

        reads = []
        for held, size in self._levels:
            if held == MEMORY_BYTES and not with_memory:
                reads.append((held, 0.0))
                continue
            times = max(1, READ_BYTES // size)
            if times > 1:
                self._read(size, 1)
            reads.append((held, size * times / _seconds(partial(self._read, size, times))))
        return Peaks(
            lanes / each("multiply_add", CHAINS),
            lanes / each("divide", CHAINS),
            each("chain", 1),
            self._launches.seconds(),
            tuple(reads),
            self._products_a_second(each),
        )

    def _products_a_second(self, each: Callable[[str, int], float]) -> float:
        made = self._products
        if made is None:
            return 0.0
        return made.lanes * made.terms / each("sum_products", CHAINS)

    def _read(self, size: int, times: int) -> None:
        read, data, out = (
            self._functions["read"],
            self._memory.ctypes.data,
            self._vector.ctypes.data,
        )
        read(data, size, times, out)


class Launches:
    """Programs that only differ in how often they dispatch a kernel of one element."""

    FEW, MANY = 4, 260

    def __init__(self, target: Target) -> None:
        b = Builder()
        b.output("y", b.op("neg", b.input("x", "f32[1]")))
        options = CompileOptions(targets=(target.name,))
        module = b.module()
        run_passes(module, MODEL_PASSES, PassContext(options))
        run_passes(module, TARGET_PASSES, PassContext(options, target))
        (function,) = module.executables
        (op,) = (o for o in module.entry_points[0].block if _executable(o) is function.name)
        choice = Choice(tuple((s.rows, s.columns) for s in function.schedule))
        self._programs = []
        for count in (self.FEW, self.MANY):
            runs = [Sized(op, {}, 1)] * count
            made = comparing_module(function, runs, [choice], target)
            self._programs.append(aot.load(module_bytes(build_image(made, target, options))))

    def seconds(self) -> float:
        """Of one dispatch."""
        few, many = (min(_seconds(partial(p.run, [])) for _ in range(3)) for p in self._programs)
        # each program dispatches all twice
        return max(many - few, 1e-9) / (2 * (self.MANY - self.FEW))


def _executable(op: object) -> str | None:
    found = getattr(op, "attrs", {}).get("executable")
    return found.name if isinstance(found, FunctionRef) else None


def _seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return max(time.thread_time() - start, 1e-9)


def _aligned(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bytes that start a cache line."""
    whole = np.ones(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]
