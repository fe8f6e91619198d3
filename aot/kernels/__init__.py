"""Kernels: the loop nests that compute an executable, in an IR (kernel IR) shared by CPUs and GPUs.

Owns kernel IR, the lowering of expressions to it, and the rules that do so. Must not look at the
rest of the program, nor know a backend.
"""
