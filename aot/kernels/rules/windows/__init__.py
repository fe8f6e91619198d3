"""Rules of windows: pools, depthwise and grouped convolutions, resizing.

Owns how lines of an input are brought into scratch for them.
"""
