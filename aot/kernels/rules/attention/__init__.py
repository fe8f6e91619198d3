"""Lowering rules of attention on CPUs and GPUs, each a loop over tiles of keys.

Must not be asked of a region without one.
"""
