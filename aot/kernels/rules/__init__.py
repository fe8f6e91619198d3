"""Rules: each matches one kind of loop nest and builds its kernel.

`table.py` lists them in the order in which they are asked. A rule owns VECTOR loops for CPUs and
LANE loops for GPUs. Must not know machine code or shaders.
"""
