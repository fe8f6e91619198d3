"""Lowering rules of ops that process a line of elements in order: scans, scatters, sorts,
suppression.

Must not be asked of a region: such an op is an executable by itself.
"""
