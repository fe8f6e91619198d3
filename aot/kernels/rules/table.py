"""The table of all lowering rules, in the order in which they are tried: the first match is used.

A line says why a rule stands where it does. Owns no loops; `aot/kernels/lowering.py` asks.
"""

from __future__ import annotations

from aot.ir.record import Kind
from aot.ir.schedule import Schedule
from aot.kernels.rules.attention.attention import schedule_attention
from aot.kernels.rules.elementwise.lanes import schedule_elements, schedule_neighbours
from aot.kernels.rules.elementwise.padded_transposes import schedule_padded_transpose
from aot.kernels.rules.elementwise.segmented import schedule_segments
from aot.kernels.rules.elementwise.transposes import schedule_transpose
from aot.kernels.rules.elementwise.words import schedule_groups, schedule_words
from aot.kernels.rules.lines.lines import schedule_scan
from aot.kernels.rules.lines.scatter import schedule_scatter
from aot.kernels.rules.lines.sort import schedule_sort
from aot.kernels.rules.lines.suppression import schedule_suppression
from aot.kernels.rules.products.byte_planes import schedule_byte_planes
from aot.kernels.rules.products.contraction import (
    schedule_blocked,
    schedule_blocked_dots,
    schedule_staged,
    schedule_tiles,
)
from aot.kernels.rules.products.inner import schedule_inner
from aot.kernels.rules.products.matrices_gpu import schedule_matrices
from aot.kernels.rules.products.planes import schedule_planes
from aot.kernels.rules.products.transforms import schedule_transform
from aot.kernels.rules.products.turned_columns import schedule_turned
from aot.kernels.rules.products.winograd import schedule_winograd
from aot.kernels.rules.recurrent.recurrence import schedule_recurrence
from aot.kernels.rules.reductions.columns import schedule_columns
from aot.kernels.rules.reductions.group_norms import schedule_group_norm
from aot.kernels.rules.reductions.lanes import (
    schedule_blocks_of_rows,
    schedule_few_results,
    schedule_long_terms,
    schedule_narrow_rows,
    schedule_results,
    schedule_terms,
)
from aot.kernels.rules.reductions.named_rows import schedule_named_rows
from aot.kernels.rules.reductions.positions import schedule_position
from aot.kernels.rules.reductions.tables import schedule_gathered, schedule_tables
from aot.kernels.rules.rule import OpRule, Rule
from aot.kernels.rules.windows.by_planes import schedule_by_planes
from aot.kernels.rules.windows.byte_depthwise import schedule_byte_depthwise
from aot.kernels.rules.windows.byte_groups import schedule_byte_groups
from aot.kernels.rules.windows.grouped_planes import schedule_grouped_planes
from aot.kernels.rules.windows.grouped_windows import schedule_grouped
from aot.kernels.rules.windows.packed_windows import schedule_packed_window
from aot.kernels.rules.windows.padded import schedule_padded
from aot.kernels.rules.windows.plane_pools import schedule_plane_pool
from aot.kernels.rules.windows.plane_windows import schedule_plane_window
from aot.kernels.rules.windows.pools import schedule_pool
from aot.kernels.rules.windows.resized import schedule_picked, schedule_resized
from aot.kernels.rules.windows.tap_sums import schedule_tap_sums
from aot.kernels.rules.windows.windows import schedule_members, schedule_window
from aot.ops.suppression import NON_MAX_SUPPRESSION

WINOGRAD = frozenset({Schedule.WINOGRAD})
TRANSFORM = frozenset({Schedule.TRANSFORM})
CONTRACTION = frozenset({Schedule.CONTRACTION})
PLANES = frozenset({Schedule.PLANES})
INNER = frozenset({Schedule.INNER})
TILES = CONTRACTION | PLANES | INNER
ELEMENTS = frozenset({Schedule.ELEMENTWISE})
# what the plan takes for a product or a transform may be none, once the ops around it are inlined
REDUCTIONS = TILES | TRANSFORM | {Schedule.REDUCTION}

RULES: tuple[Rule, ...] = (
    # The plan alone knows of transformed filters: it has packed them.
    Rule("products/winograd", WINOGRAD, schedule_winograd),
    # One of Winograd's transforms by itself, but as a part of a nest: then it is a reduction.
    Rule("products/transform", TRANSFORM, schedule_transform),
    # Groups over planes have few channels each: tiles of one of them leave most of a vector idle.
    Rule("windows/grouped_planes", TILES, schedule_grouped_planes),
    # The plan found rows to be neighbours: all lanes load what tiles of columns load one by one.
    Rule("products/planes", PLANES, schedule_planes),
    # The same where windows slide over them, for few columns.
    Rule("windows/tap_sums", PLANES, schedule_tap_sums),
    # The plan found fewer columns than lanes.
    Rule("products/inner", INNER, schedule_inner),
    # Groups whose channels are neighbours share what lines of scratch hold.
    Rule("windows/grouped", CONTRACTION, schedule_grouped),
    # Columns that lie along their terms are turned once for all rows.
    Rule("products/turned_columns", CONTRACTION, schedule_turned),
    # Groups of bytes, which tiles would have in words of one group.
    Rule("windows/byte_groups", TILES, schedule_byte_groups),
    # Weights that are stored in blocks have panels of their own; integers before floats.
    Rule("products/blocked_dots", TILES, schedule_blocked_dots),
    Rule("products/blocked", TILES, schedule_blocked),
    # Pixels of few bytes are words as they lie.
    Rule("products/byte_planes", TILES, schedule_byte_planes),
    # A GPU's matrices multiply many times as fast as lanes.
    Rule("products/matrices", TILES, schedule_matrices),
    # The plan wants terms in shared memory.
    Rule("products/staged", TILES, schedule_staged),
    # Every other contraction.
    Rule("products/tiles", TILES, schedule_tiles),
    # The last group of an axis, which is not whole, would be asked for at each element.
    Rule("elementwise/groups", ELEMENTS, schedule_groups),
    # Blocks within segments, whose rows would be loaded one by one.
    Rule("elementwise/padded_transposes", ELEMENTS, schedule_padded_transpose),
    # Conditions on indices are decided once for a segment.
    Rule("elementwise/segments", ELEMENTS, schedule_segments),
    # Words of neighbours that stay together are moved as one, before single elements are.
    Rule("elementwise/words", ELEMENTS, schedule_words),
    # Operands whose neighbours lie along another axis are loaded in squares.
    Rule("elementwise/transposes", ELEMENTS, schedule_transpose),
    # Tables that pick rows and columns: a line of columns is picked once for the rows that want it.
    Rule("windows/picked", ELEMENTS, schedule_picked),
    # What a table names along a row is found once for all rows.
    Rule("reductions/gathered", ELEMENTS, schedule_gathered),
    # Four neighbours a lane of a GPU are one access to memory.
    Rule("elementwise/neighbours", ELEMENTS, schedule_neighbours),
    # Every other element.
    Rule("elementwise/lanes", ELEMENTS, schedule_elements),
    # Sums in sums: the inner ones would be made anew for each of the outer.
    Rule("windows/resized", REDUCTIONS, schedule_resized),
    # A driver stops lanes that take too long.
    Rule("reductions/long_terms", REDUCTIONS, schedule_long_terms),
    # Groups that fill no vector: vectors go across their ends.
    Rule("reductions/group_norms", REDUCTIONS, schedule_group_norm),
    # A position and its extremum are one pass.
    Rule("reductions/positions", REDUCTIONS, schedule_position),
    # Elements that are read once, by rows of memory.
    Rule("reductions/columns", REDUCTIONS, schedule_columns),
    # Bytes multiply in words, as no other window does.
    Rule("windows/byte_depthwise", REDUCTIONS, schedule_byte_depthwise),
    # Separable windows take as many terms as both sides have together, over planes and channels.
    Rule("windows/plane_pools", REDUCTIONS, schedule_plane_pool),
    # Rows that tables name, before they are taken for windows that slide by what tables say.
    Rule("reductions/named_rows", REDUCTIONS, schedule_named_rows),
    # Windows with a weight for each tap, of which lines are brought into scratch once.
    Rule("windows/plane_windows", REDUCTIONS, schedule_plane_window),
    # Of windows with lanes along channels: separable ones, those whose input fits scratch, all.
    Rule("windows/pools", REDUCTIONS, schedule_pool),
    Rule("windows/packed", REDUCTIONS, schedule_packed_window),
    Rule("windows/windows", REDUCTIONS, schedule_window),
    # Lanes would load one by one what tables name along the innermost axis.
    Rule("reductions/tables", REDUCTIONS, schedule_tables),
    # Groups of several members are windows once members have a loop of their own.
    Rule("windows/members", REDUCTIONS, schedule_members),
    # Windows over planes with padding, which no vector asks for again; then channels-last results.
    Rule("windows/padded", REDUCTIONS, schedule_padded),
    Rule("windows/by_planes", REDUCTIONS, schedule_by_planes),
    # Few results leave a GPU idle.
    Rule("reductions/few_results", REDUCTIONS, schedule_few_results),
    # More is contiguous along the result, or there are few terms.
    Rule("reductions/results", REDUCTIONS, schedule_results),
    # Rows side by side share no cache line with their neighbours: some of them at a time do.
    Rule("reductions/row_blocks", REDUCTIONS, schedule_blocks_of_rows),
    # Rows that fill no vector.
    Rule("reductions/narrow_rows", REDUCTIONS, schedule_narrow_rows),
    # Any reduction.
    Rule("reductions/terms", REDUCTIONS, schedule_terms),
)

OP_RULES: tuple[OpRule, ...] = (
    OpRule("recurrent/layer", Kind.RECURRENCE, schedule_recurrence),
    OpRule("attention/attention", Kind.ATTENTION, schedule_attention),
    # It sorts no lines: heaps of candidates, of which each is met by those chosen before it.
    OpRule("lines/suppression", Kind.SORT, schedule_suppression, NON_MAX_SUPPRESSION),
    OpRule("lines/sort", Kind.SORT, schedule_sort),
    OpRule("lines/scan", Kind.SCAN, schedule_scan),
    OpRule("lines/scatter", Kind.SCATTER, schedule_scatter),
)

BY_NAME = {rule.name: rule for rule in RULES}
