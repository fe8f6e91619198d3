"""From objects, programs and constants to one module file.

Owns the arena plan, the rodata pool, and the file's writer and reader. Knows nothing of graphs:
what it gets are bytes, lifetimes and instructions.
"""
