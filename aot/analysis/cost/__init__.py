"""Cost models: schedules and tiles of an op on a target, layouts, and minimum-cost labellings.

Owns the plan of an op, the cost models and the candidates of tuning. Must not change a graph.

Files:
    plan: how an op would run on a target: schedule class, tile, packing, scratch, cost; pure
        functions
    tile_costs, candidates: cost of an op under a tile; the ways in which an executable may run,
        cheapest first
    register_tiles: the register tile of a contraction on a CPU that keeps multipliers busiest
    across, few_columns, attention_tiles: tiles of results stored in planes, of products with few
        columns, and of attention
    dots: products that are summed a word at a time, and what bounds their tiles
    gpu_tiles, gpu_matrices: a contraction's tile on a GPU: by lanes, and by cooperative matrices
    group_prices: what a workgroup takes of a run on a GPU
    winograd, winograd_parts: where Winograd's algorithm pays: in one kernel, or on a GPU in a
        dispatch for each part
    code_size, code_bytes: bytes of machine code of a stage: an estimate, from bytes of its parts by
        architecture
    recompute: recomputing a value in each pass that reads it, compared with storing it once
    layout_costs, min_cut: cost of an op under each layout, and the cheapest layouts of all values:
        a minimum cut
"""
