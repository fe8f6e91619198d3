"""Values assumed for extents that are known only at run time, for cost comparisons.

One name a question, so that the guess for one can change without the others. They decide how fast
code is, never what it computes.
"""

from __future__ import annotations

from typing import Final

# Layouts: extents of images and sequences in the middle of a model; what matters is that a tensor
# is longer than a vector and dearer than a dispatch.
LAYOUT: Final = 64

# Strides that are compared to find which dim is innermost: anything above 1 distinguishes them, and
# as for layouts both sides of a comparison are of one size.
STRIDE: Final = 64

# Winograd's tiles, and blocks of a window's columns: a side of an image, where transforms already
# pay.
IMAGE: Final = 64

# Tiles of contractions: rows and columns enough to fill tiles, with a tail beside.
TILE: Final = 256

# Steps of a weight's address along reduced axes, of which the smallest goes innermost.
WEIGHT_STRIDE: Final = 256

# Columns and terms of a row that a GPU multiplies alone: a language model's layer.
LAYER: Final = 2048

# Work of a dispatch, as join-regions prices it on a CPU: a sequence of usual length.
WORK: Final = 256

# The same on a GPU: a workgroup that is alone with a long input holds up the whole device, and
# lavapipe ends loops after 65,535 iterations of a lane in sum.
WORK_ON_GPU: Final = 1 << 12

# Iterations of a loop, beside other loops of a function that LLVM gives registers.
ITERATIONS: Final = 256

# Images or sequences of a tensor that may be longer than a cache: what is asked for early in each
# pays for one alone.
LEAST: Final = 1

# Work of an index of an axis that workgroups share: little, so that one is seldom too small.
GRAIN_WORK: Final = 2

# What tuning runs executables at: extents of usual inputs, small enough to be measured often.
MEASURED: Final = 64

# Lines that a GPU's lane sorts, which may well be long, and those that it scans or scatters along:
# beyond what a lane may go through, a host has them if there is one.
SORTED: Final = 1 << 16
ALONG_A_LINE: Final = 1 << 12
