"""The order of the passes, as two lists, with the positions that the driver and the tests refer to.

No other file knows the order. Where it matters, a comment says why.
"""

from __future__ import annotations

from aot.passes.base import Pass
from aot.passes.bind import BIND
from aot.passes.check_supported import CHECK_SUPPORTED
from aot.passes.default_bounds import DEFAULT_BOUNDS
from aot.passes.fusion.fuse import FUSE
from aot.passes.fusion.join_regions import JOIN_REGIONS
from aot.passes.fusion.merge_siblings import MERGE_SIBLINGS
from aot.passes.fusion.outline import OUTLINE
from aot.passes.fusion.tie_operands import TIE_OPERANDS
from aot.passes.layout.assign_layouts import ASSIGN_LAYOUTS
from aot.passes.layout.choose_algorithms import CHOOSE_ALGORITHMS
from aot.passes.layout.defer_transposes import DEFER_TRANSPOSES
from aot.passes.layout.pack import PACK
from aot.passes.layout.resolve_shapes import RESOLVE_SHAPES
from aot.passes.memory.alias_concat import ALIAS_CONCAT
from aot.passes.memory.bind_state import BIND_STATE
from aot.passes.memory.inline import INLINE
from aot.passes.memory.insert_copies import INSERT_COPIES
from aot.passes.memory.write_values import WRITE_VALUES
from aot.passes.quantise.bf16_products import BF16_PRODUCTS
from aot.passes.quantise.legalise_dtypes import LEGALISE_DTYPES
from aot.passes.quantise.narrow_arithmetic import NARROW_ARITHMETIC
from aot.passes.quantise.narrow_storage import NARROW_STORAGE
from aot.passes.quantise.prepare_dots import PREPARE_DOTS
from aot.passes.quantise.quantise_contractions import QUANTISE_CONTRACTIONS
from aot.passes.quantise.tabulate import TABULATE
from aot.passes.simplify.algebra import ALGEBRA
from aot.passes.simplify.canonicalize import CANONICALIZE
from aot.passes.simplify.cse import CSE
from aot.passes.simplify.dce import DCE
from aot.passes.simplify.fold_constants import FOLD_CONSTANTS
from aot.passes.simplify.rematerialize_iota import REMATERIALIZE_IOTA
from aot.passes.simplify.split_recurrences import SPLIT_RECURRENCES
from aot.passes.specialise.apply_tuning import APPLY_TUNING
from aot.passes.specialise.despecialise import DESPECIALISE

# Once a model, whatever the target.
MODEL_PASSES: tuple[Pass, ...] = (
    INLINE,  # the model is one function from here on
    BIND,
    BIND_STATE,  # while what grows is still a concat, and before what is not read goes
    WRITE_VALUES,  # rules are for values that never change
    FOLD_CONSTANTS,  # what the model computes from constants, before patterns are looked for
    QUANTISE_CONTRACTIONS,  # before weights become floats, which the next does
    FOLD_CONSTANTS,
    DEFER_TRANSPOSES,  # before those of extents of 1 become reshapes, and algebra looks around
    RESOLVE_SHAPES,
    CANONICALIZE,
    CSE,  # what two users share is seen as one, before algebra asks who uses it
    DCE,
    ALGEBRA,
    SPLIT_RECURRENCES,  # before layouts are assigned, and products of one input merged
    FOLD_CONSTANTS,
    MERGE_SIBLINGS,  # weights and biases are constants again
    DCE,
    DEFAULT_BOUNDS,  # of what is left
)

# Once a target.
TARGET_PASSES: tuple[Pass, ...] = (
    CHECK_SUPPORTED,  # before passes that know only what can be run
    LEGALISE_DTYPES,
    BF16_PRODUCTS,  # before layouts, which are other ones for these
    PREPARE_DOTS,  # what it pads and moves gets its layout here, and is fused into its producer
    ASSIGN_LAYOUTS,  # changes producers and leaves pending shape changes
    RESOLVE_SHAPES,
    CHOOSE_ALGORITHMS,  # by the layouts that are
    NARROW_ARITHMETIC,  # by the algorithms; before weights are packed
    PACK,
    FOLD_CONSTANTS,  # packs weights; casts that legalising made
    CSE,
    DCE,  # nothing dead may become a region
    REMATERIALIZE_IOTA,  # after CSE, which would undo it
    ALIAS_CONCAT,  # before fusion: what is a view needs no region
    INSERT_COPIES,  # what is a view by its type only, now that types are final
    TABULATE,  # by the layouts that are; a table is one op of a region
    FUSE,
    JOIN_REGIONS,
    NARROW_STORAGE,  # what is stored is known; the buffers' types are not relied on yet
    TIE_OPERANDS,  # part of an executable's identity: before outlining
    OUTLINE,  # merges structurally equal executables
    DESPECIALISE,  # merges those that differ in extents
    APPLY_TUNING,  # by what executables are in the end
    DCE,
)


FORMED = TARGET_PASSES.index(JOIN_REGIONS) + 1  # where it is known why regions end
OUTLINED = TARGET_PASSES.index(OUTLINE) + 1  # where the ledger asks what became one
TUNED = TARGET_PASSES.index(APPLY_TUNING)  # where executables are measured, if at all
