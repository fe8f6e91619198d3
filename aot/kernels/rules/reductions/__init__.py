"""Rules of reductions: rows, columns, positions of extrema, and what tables name.

Owns the fallback, which builds any result.
"""
