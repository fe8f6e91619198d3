"""The proof that a kernel stays inside its memory, for all shapes.

Knows kernels and no schedule: it judges what schedules have made.
"""
