"""Passes that change element types: what a target lacks, and what is stored in fewer bits.

Must not change shapes or layouts.
"""
