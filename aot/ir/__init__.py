"""The graph IR: dims, types, expressions, values and ops, and the rewriter that changes them.

Owns the text form, the verifier and the reference interpreter of any stage's graph. Must not know
which ops there are beyond their records, nor any target, pass or file format.

Files:
    dims, dim_parser, dim_limits: extents: ints or canonical expressions over named symbols; their
        text, and limits of their size
    bounds, equalities: bounds of dims and of their symbols; dims that assumptions make equal
    dim_semantics, dim_ratios: what integer ops mean on arrays of dims, and float ops on values
        computed from extents
    data_dims, assumed_extents: extents that data decide, with upper bounds; values assumed for
        unknown extents in costs
    types, arrays: element types, tensor types and layouts; arrays of numbers or dims
    expr, wide_functions: scalar expressions of ops and kernels; functions of one number in double
        precision
    graph, rewriter: values, ops, blocks and functions; the only code that changes them
    record, attributes, body, builtin: what an op declares; its attributes by their types; how an
        op runs its blocks; the ops that the graph itself needs
    builder: graphs made in Python, one call an op
    contraction, schedule: the roles of a contraction's dims; how each stage of an executable runs
    index_map, mapped_operand: which element of one tensor an element of another is; operands behind
        such maps
    states, loops: state variables of a function; loops that only their condition ends
    clone, compare, verifier: copies, structural equality, and the checks of every invariant
    text, interpreter: the text form; evaluation of any stage's graph in numpy
    input_files, array_files: opening what a user names: regular files only; .npy and .npz files
    limits, large_arrays: the memory that an import may take; where large constants are kept
"""
