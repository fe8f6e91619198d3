"""Links objects, programs and constants into one module file.

Owns the arena plan, the rodata pool, and the file's writer and reader. Knows nothing of graphs:
what it gets are bytes, lifetimes and instructions.

Files:
    emit_program, emitter, flow, program, program_steps: the program: dispatches and control flow as
        instructions; reading it back
    shape_part, nonnegative, lengths, states: registers of dims and their checks; lengths of states;
        where states are kept
    lifetimes, arena, regions, overlap: lifetimes of buffers, their placement, and dispatches that
        may run at the same time
    class_sizes: the most bytes of each buffer class, by which a GPU binds it
    placement_check: proves that each operand and copy of a program is inside memory that is live
    host_copies: copies between a GPU's memory and the host's
    rodata, addresses: the pool of constants of all variants; symbolic addresses until offsets are
        known
    code_image, elf, wasm, relocations: linking objects into one position-free image
    upgrade: vocabularies of earlier versions, rewritten
    finish, merge, notes: from variants to a module; several modules as one; notes that merging and
        tools need
    image, module, files, vocabulary: a module's contents as records, its writer, and its parts on
        disk
    pattern_tables, pattern_automaton, cut_layout: the patterns by which a vocabulary cuts text, as
        tables
    template_compiler, template_expressions, template_code: chat templates as code that a vocabulary
        keeps
    reader, flatbuffer, image_check: the reader: structure and programs are checked as the runtime
        checks them
    module_fbs, module_schema: generated from module.fbs and module_rules.toml
"""
