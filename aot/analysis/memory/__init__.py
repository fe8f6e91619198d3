"""Storage of values: buffer classes, views, strides and alignments.

Owns the questions, not the placement of bytes, which is the linker's.
"""
