"""What a kernel costs, by its loops alone: an estimate of what runs, whichever rule built it.

`cycles.py` walks a kernel, `indices.py` says what indices are over its loops, `lines.py` which
lines of caches it touches. Knows no op, no plan and no rule.
"""
