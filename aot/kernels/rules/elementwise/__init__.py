"""Rules of results whose elements need no loop: computed, moved, or picked by tables.

Must not reduce.
"""
