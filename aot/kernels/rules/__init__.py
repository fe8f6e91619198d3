"""Rules: each builds the kernels of one class of work, and says of which it can.

`table.py` lists them in the order in which they are asked. A rule owns VECTOR loops for CPUs and
LANE loops for GPUs. Must not know machine code or shaders.
"""
