"""Analyses of a graph that passes, kernels and the linker share; they change nothing.

Must not change a function.

Files:
    accesses, renaming: which operand elements an op's results read: index functions and conditions
    dispatches, launches, control: the dispatches of a program; what each computes and moves; the
        blocks that are stepped through
    stages: how a dispatch with several results runs as one kernel
    dim_values, integer_ranges: integer tensors as dims; 64-bit ops that are exact in 32 bits
    discontinuities, half: values that reach an op where the last bit decides; values that f16
        cannot hold
    needs: conditions on open extents under which an op stays inside its operands
    cpu_fallback, resized: ops that a GPU's target cannot run; resizes that run as one pass over
        planes
    tuning: recorded choices of tuning, as a table that passes get
    alias, cost, memory: which values may share memory; what running costs; where values are stored
"""
