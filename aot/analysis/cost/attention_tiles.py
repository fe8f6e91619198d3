"""Tiles of attention on a CPU: the register tile, and the number of keys per tile."""

from __future__ import annotations

from aot.ir.dims import Dim

# keys of a tile: its scores stay in the nearest cache beside keys and values
KEYS_AT_ONCE = 64
# lanes of vectors where tiles fit the extents
WIDE_LANES = 8
# vectors of queries and keys of a register tile at most
MOST_VECTORS, MOST_COLUMNS = 4, 14
# queries up to which each is taken by itself, as lanes along them would mostly idle, and what one
# costs, in vectors of queries
FEW_QUERIES, QUERY_COST = 4, 0.2
# what a score costs beside products, and the ends of a loop over depths, in multiply-adds
SOFTMAX_COST, LOOP_COST = 40.0, 16.0


def attention_tile(
    queries: int, keys: int, depth: int, registers: int, lanes: int
) -> tuple[int, int]:
    """(vectors of queries, keys) of attention's register tile: the one with the least waste at both
    ends, and the fewest loads.
    """

    def price(tile: tuple[int, int]) -> tuple[float, int]:
        vectors, columns = tile
        blocks, left = divmod(queries, lanes * vectors)
        alone = left if left <= FEW_QUERIES else 0
        done = (blocks + (left > alone)) * vectors + alone * QUERY_COST
        each = keys_of_tile(keys, columns)
        step = max(1.0, (vectors + columns) / (vectors * columns))
        loops = depth * step + SOFTMAX_COST + LOOP_COST / columns / vectors
        return done * -(-keys // each) * each * loops, -vectors * columns

    tiles = [
        (vectors, columns)
        for vectors in range(1, MOST_VECTORS + 1)
        for columns in range(2, MOST_COLUMNS + 1)
        if (columns + 2) * vectors + 1 <= registers
    ]
    return min(tiles, key=price)


def keys_of_tile(keys: Dim, columns: int) -> int:
    """The number of keys in a CPU's tile, a multiple of `columns`; if the total is known, tiles are
    equally large."""
    if not isinstance(keys, int):
        return columns * max(1, -(-KEYS_AT_ONCE // columns))
    tiles = max(1, (keys + KEYS_AT_ONCE // 2) // KEYS_AT_ONCE)
    return columns * max(1, -(-keys // (tiles * columns)))
