"""Building blocks with which rules stage data: input lines in scratch, prefetches, tails.

Owns loops that several rules have in common. Must not choose a rule, nor tile sizes of one.

Files:
    ahead: prefetches of the cache lines that neighbours are in
    band: lines of a plane in scratch, between their padding
    epilogue: an output around its sum, in segments of a row
    tails: parts of an extent, and who asks whether a place is one of it
    vectors: unrolled vectors of a register tile
"""
