"""The rules of attention: a loop over tiles of keys, on CPUs and GPUs.

Must not be asked of a region without one.
"""
