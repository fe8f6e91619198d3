"""Passes that change element types: for dtypes that a target lacks, and to store or compute in
fewer bits.

Must not change shapes or layouts.
"""
