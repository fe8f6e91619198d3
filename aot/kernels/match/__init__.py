"""Recognises in a loop nest's expressions what it computes: windows, products, reductions.

Owns facts alone, each found once for a nest (work.py). Must not make loops.
"""
