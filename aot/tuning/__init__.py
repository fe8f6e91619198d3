"""Tuning: which candidates of executables are measured, by whom, and the file of the records.

Owns measuring and its cache. Must not decide what candidates there are, nor apply what it found.
"""
