"""Passes from graph to graph, one per file; `order` lists them in the order in which they run.

Own what becomes of a graph. Must not know how kernels are lowered, compiled or linked.

Files:
    order, base: the two lists of passes; how they run
    bind, default_bounds, check_supported: what the user fixed; bounds of extents without a limit;
        refusal of what no target can run
    simplify: exact rules, algebra and its contract, folding, common subexpressions, dead code
    layout: layouts, pending shape changes, packed weights, the choice of Winograd
    fusion: merged siblings, regions, stages, ties, executables; reports on why regions end
    memory: calls in line, writes in place as values, concats as memory, states, copies
    specialise: extents as parameters; measured choices
    quantise: quantised models on their integers; types that a target lacks; 16-bit storage
"""
