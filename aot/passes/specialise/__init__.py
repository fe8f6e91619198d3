"""Passes that decide how many executables there are: extents as parameters, tuned choices.

Must not change what is fused.
"""
