"""What a loop nest computes: windows, products, reductions, found in its expressions.

Owns facts alone, each found once for a nest (work.py). Must not make loops.
"""
