"""Estimates what a kernel costs from its loops alone, whichever rule built it.

`cycles.py` walks a kernel, `indices.py` says what indices are over its loops, `lines.py` which
lines of caches it touches. Knows no op, no plan and no rule.
"""
