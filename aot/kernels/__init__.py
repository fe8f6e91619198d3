"""Kernels: an executable's region as loops, for CPUs and GPUs alike.

Owns kernel IR, the lowering of expressions to it, and the rules that do so. Must not look at the
rest of the program, nor know a backend.
"""
