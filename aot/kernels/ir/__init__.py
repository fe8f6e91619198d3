"""Kernel IR: loop nests over buffers and scratch, with its text, verifier and interpreter.

Owns the meaning of a kernel, races included. Must not know how kernels are scheduled.
"""
