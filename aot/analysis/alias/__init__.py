"""Alias analysis: which values may share memory, who writes it, and which moves that permits.

Owns the alias database and its solver, which follow rewrites. Must not decide what to rewrite.
"""
