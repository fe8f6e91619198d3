"""The graph IR: extents, types, expressions, values and ops, and the rewriter that changes them.

Owns the text form, the verifier and the reference interpreter of any stage's graph. Must not know
which ops there are beyond their records, nor any target, pass or file format.
"""
