"""The operations that are single instructions on a CPU target, derived from LLVM's feature names.

Owns the reading of LLVM feature names. Everything a module beside this asks about a target that is
not a number in its file is asked here.
"""

from __future__ import annotations

from aot.backends.cpu.assembler import Type
from aot.base.records import dataclass
from aot.errors import InternalError
from aot.ir.types import DType
from aot.target.model import Target

_ELEMENTS = {
    DType.F32: "float",
    DType.F64: "double",
    DType.BOOL: "i1",
    # as what a lane of registers of floats holds: instructions take one of these
    DType.BF16X2: "float",
}


@dataclass(frozen=True)
class Traits:
    """The single-instruction operations of one target.

    Attributes:
        has_fma: multiply-add with one rounding.
        has_relaxed_fma: multiply-add of vectors with one rounding or two, as the machine has it.
        has_half: conversion between f16 and f32.
        has_neon_half: those conversions for four elements at once, on 32-bit Arm.
        has_half_math: arithmetic in f16.
        has_rounding: floor, ceil, trunc and round to even of floats.
        has_nan_extrema: a minimum and a maximum that propagate NaN.
        has_division: integer division; without it i32 goes by way of f64.
        has_wide_integers: division of 64-bit integers, and conversions between them and floats.
        has_vectors: SIMD registers of more than one f32.
    """

    target: Target
    has_fma: bool
    has_relaxed_fma: bool
    has_half: bool
    has_neon_half: bool
    has_half_math: bool
    has_rounding: bool
    has_nan_extrema: bool
    has_division: bool
    has_wide_integers: bool

    @staticmethod
    def of(target: Target) -> Traits:
        if not target.is_cpu:
            raise InternalError(f"target {target.name} is not a cpu")

        def any_of(*features: str) -> bool:
            return any(target.has(f) for f in features)

        arch = target.arch
        is_arm32 = arch in ("arm", "thumb")
        is_wasm = arch == "wasm32"
        return Traits(
            target=target,
            has_fma=arch == "aarch64" or any_of("fma", "vfp4", "vfp4d16sp", "f"),
            has_relaxed_fma=is_wasm and any_of("relaxed-simd"),
            has_half=target.converts_half,
            has_neon_half=arch == "arm" and any_of("neon") and target.converts_half,
            has_half_math=any_of("fullfp16", "avx512fp16"),
            has_rounding=arch == "aarch64"
            or is_wasm
            or any_of("sse4.1", "fp-armv8", "fp-armv8d16sp", "f"),
            has_nan_extrema=target.has_nan_extrema,
            has_division=not is_arm32 or any_of("hwdiv-arm" if arch == "arm" else "hwdiv"),
            has_wide_integers=target.word_bytes == 8 or is_wasm,
        )

    @property
    def has_vectors(self) -> bool:
        return self.target.lanes(DType.F32) > 1

    @property
    def has_free_steps(self) -> bool:
        """Whether addresses with constant displacements cost no more in a loop than sums of
        registers, because loads increment their register or have no other form."""
        return self.target.arch in ("aarch64", "arm", "riscv64")

    @property
    def group_bytes(self) -> int:
        """Bytes per vector operation: a register, or on RISC-V a group of four, so that wider
        registers than the target's are used and narrow cores fetch fewer instructions.
        """
        return self.target.vector_bytes * (4 if self.target.has("zvl128b") else 1)

    @property
    def index(self) -> Type:
        """Type of INDEX values: as wide as a pointer."""
        return Type(f"i{8 * self.target.word_bytes}")

    def element(self, dtype: DType) -> str:
        """LLVM's type of a value in registers; f16 is kept as bits where the target lacks it."""
        if dtype is DType.INDEX:
            return self.index.element
        if dtype is DType.F16:
            return "half" if self.has_half else "i16"
        return _ELEMENTS.get(dtype) or f"i{dtype.bits}"

    def memory_element(self, dtype: DType) -> str:
        """LLVM's type of an element in memory: bool takes a byte."""
        return "i8" if dtype is DType.BOOL else self.element(dtype)

    def bytes_of(self, dtype: DType) -> int:
        """Size of an element in memory; INDEX lives in scratch only, as wide as a pointer."""
        return self.target.word_bytes if dtype is DType.INDEX else dtype.bytes

    def has_masked(self, element_bytes: int) -> bool:
        """Whether loads and stores of vectors under a mask are one cheap instruction."""
        is_narrow = element_bytes < 4 and self.target.arch == "x86_64"
        return self.target.has_masks and (not is_narrow or self.target.has("avx512bw"))
