"""Objects of one small function each, from LLVM."""

from __future__ import annotations

import llvmlite.binding as llvm

from tests.support.cpu_running import target_of

BODIES = {
    "one": "ret void",
    "store": "store float 1.5, ptr %d\n ret void",
    "constants": "store <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>, ptr %d, align 4\n"
    " ret void",
    "other": "store <4 x float> <float 1.0, float 2.0, float 3.0, float 5.0>, ptr %d, align 4\n"
    " ret void",
    "both": "store <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>, ptr %d, align 4\n"
    " %p = getelementptr i8, ptr %d, i32 16\n"
    " store <4 x float> <float 1.0, float 2.0, float 3.0, float 5.0>, ptr %p, align 4\n"
    " ret void",
}


def build(target_name: str, body: str, more: str = "", name: str = "kernel") -> bytes:
    """An object with a function of that body, and whatever else the module has."""
    target = target_of(target_name)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = ",".join([*(f"+{f}" for f in target.features), *target.options])
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=features, reloc="pic", codemodel="small", abiname=target.abi
    )
    text = (
        f'source_filename = "made"\ntarget triple = "{target.triple}"\n{more}\n'
        f"define void @{name}(ptr %d, i32 %x, i32 %y, i32 %z) nounwind {{\n {body}\n}}\n"
    )
    return bytes(machine.emit_object(llvm.parse_assembly(text)))
