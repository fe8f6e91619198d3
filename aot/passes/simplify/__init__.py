"""Passes that remove work: folding, algebra, common subexpressions, dead code.

Must not choose layouts, regions or memory.
"""
