"""Targets: what a device offers, read from one TOML file each.

Owns the target record, the reading and checking of target files, the choice among them, and what
this machine's CPU has. Must not know passes, kernels or backends.
"""
