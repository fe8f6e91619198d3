"""Lowering rules for element-wise results: computed, moved or gathered without a reduction.

Must not reduce.
"""
