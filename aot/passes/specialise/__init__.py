"""Passes that decide how many executables there are: extents as parameters, measured choices.

Must not change what is fused.
"""
