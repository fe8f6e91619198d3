"""Finds features that a CPU's name enables in LLVM although a target does not list them.

Owns the features that matter, and a probe: code that LLVM compiles in another way with each of them
than without. LLVM tells of a CPU's features by nothing else that its binding has. Where the probe
changes as a feature is switched off, the CPU had it.
"""

from __future__ import annotations

# by architecture: those with instructions of their own for what kernels do
FEATURES: dict[str, tuple[str, ...]] = {
    "x86_64": (
        *("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "f16c", "fma", "bmi"),
        *("lzcnt", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512fp16", "avxvnni"),
    ),
    "aarch64": ("fullfp16", "dotprod", "i8mm", "sve"),
    "arm": ("neon", "vfp4", "fullfp16", "dotprod", "hwdiv-arm"),
    "thumb": (),  # no loader looks for features there: a firmware is built for its chip
    "riscv64": ("m", "f", "d", "v", "zbb", "zfh"),
    "riscv32": ("m", "f", "d", "v", "zbb", "zfh"),
    "wasm32": ("simd128",),
}

PROBE = """
define <8 x float> @a(<8 x float> %a, <8 x float> %b, <8 x float> %c) {
  %m = fmul contract <8 x float> %a, %b
  %s = fadd contract <8 x float> %m, %c
  ret <8 x float> %s
}
define <8 x i32> @b(<8 x i32> %a, <8 x i32> %b) {
  %m = mul <8 x i32> %a, %b
  ret <8 x i32> %m
}
define <16 x i32> @c(<16 x i32> %a, <16 x i32> %b) {
  %m = mul <16 x i32> %a, %b
  ret <16 x i32> %m
}
declare <64 x i8> @llvm.umax.v64i8(<64 x i8>, <64 x i8>)
define <64 x i8> @c8(<64 x i8> %a, <64 x i8> %b) {
  %m = call <64 x i8> @llvm.umax.v64i8(<64 x i8> %a, <64 x i8> %b)
  ret <64 x i8> %m
}
define <8 x float> @d(<8 x half> %a) {
  %m = fpext <8 x half> %a to <8 x float>
  ret <8 x float> %m
}
define <8 x half> @d2(<8 x half> %a, <8 x half> %b) {
  %m = fadd <8 x half> %a, %b
  ret <8 x half> %m
}
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.ctlz.i32(i32, i1)
declare i32 @llvm.cttz.i32(i32, i1)
define i32 @e(i32 %a) {
  %m = call i32 @llvm.ctpop.i32(i32 %a)
  %n = call i32 @llvm.ctlz.i32(i32 %a, i1 0)
  %o = call i32 @llvm.cttz.i32(i32 %a, i1 0)
  %p = add i32 %m, %n
  %q = add i32 %p, %o
  ret i32 %q
}
declare <4 x float> @llvm.floor.v4f32(<4 x float>)
define <4 x float> @f(<4 x float> %a) {
  %m = call <4 x float> @llvm.floor.v4f32(<4 x float> %a)
  ret <4 x float> %m
}
define i32 @g(<16 x i8> %a, <16 x i8> %b) {
  %x = sext <16 x i8> %a to <16 x i32>
  %y = zext <16 x i8> %b to <16 x i32>
  %m = mul <16 x i32> %x, %y
  %s = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %m)
  ret i32 %s
}
define i32 @g2(<16 x i8> %a, <16 x i8> %b) {
  %x = sext <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %m = mul <16 x i32> %x, %y
  %s = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %m)
  ret i32 %s
}
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @h(i32 %a, i32 %b) {
  %m = sdiv i32 %a, %b
  %n = call i32 @llvm.sadd.sat.i32(i32 %m, i32 %b)
  ret i32 %n
}
declare i32 @llvm.sadd.sat.i32(i32, i32)
"""
