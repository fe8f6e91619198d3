"""Lowering rules of reductions: along rows and columns, positions of extrema, and table-driven
resizes.

Owns the fallback, which builds any result.
"""
