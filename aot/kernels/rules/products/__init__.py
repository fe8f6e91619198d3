"""Lowering rules of matrix products and convolutions: register tiles on CPUs and GPUs.

Owns the tiles, their operands and what becomes of their sums. From what all tiles share to rules:

- product.py: the product, a tile and its place, sums in registers; sum_order.py, row_vectors.py;
- tile_ends.py: a tile's first sums and epilogue; products.py: loops over what is summed between;
- contraction.py: tiles of all contractions, the rules of which are in it; ahead.py, sum_pieces.py
  and packed_rows.py change what a CPU's tiles read, dots.py to dots_matrix.py multiply words;
- planes.py, inner.py, turned_columns.py, byte_planes.py: lanes along rows, terms, other columns;
- blocked_weights.py, blocked_dots.py: weights stored in blocks, which stored_weights.py decodes;
- products_gpu.py, products_staged.py, matrices_gpu.py: a GPU's tiles, dots_gpu.py and
  matrix_sides.py their operands;
- winograd.py and its parts, transforms.py: Winograd's algorithm.
"""
