"""Schedules: how each class of work becomes loops, and the kernels that are written by hand.

Own VECTOR loops for CPUs and LANE loops for GPUs. Must not know machine code or shaders.
"""
