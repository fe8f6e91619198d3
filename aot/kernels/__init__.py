"""Kernels: an executable's region as loops, for CPUs and GPUs alike.

Owns kernel IR, the lowering of expressions, and the schedules. Must not look at the rest of the
program, nor know a backend.
"""
