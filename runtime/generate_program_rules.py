"""The checks of a program's instructions, from `runtime/module_rules.toml` and `module.fbs`.

Makes them in C, in Python and in words; generate_schema.py writes what is made here. Must not
import `aot`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from generate_rules import C_CALLS, HEAD, SORTS, Dialect, translate

NO_RULE = "True"


@dataclass(frozen=True)
class OperandRule:
    """A row of the table: what words of an operand may be."""

    kind: str
    names: tuple[str, ...]
    letter: str
    holds: str = NO_RULE
    fault: str = ""


@dataclass(frozen=True)
class InstructionRule:
    """A row of the table: what instructions are for, or what must hold of one."""

    names: tuple[str, ...]
    fault: str
    of: str = ""
    holds: str = ""


@dataclass(frozen=True)
class Instruction:
    """An instruction as module.fbs has it: its operands by name, the last with "..." where there
    may be any number; "prepare" or "execute" where only that part may have it."""

    name: str
    operands: tuple[str, ...]
    part: str
    is_terminator: bool


@dataclass(frozen=True)
class ProgramRules:
    """All of it."""

    instructions: tuple[Instruction, ...]
    operands: tuple[OperandRule, ...]
    rules: tuple[InstructionRule, ...]
    constants: dict[str, str]  # enum by name of its values

    def operand(self, name: str) -> OperandRule:
        """The row of an operand.

        Raises SystemExit where the table has none.
        """
        for row in self.operands:
            if name.removesuffix("...") in row.names:
                return row
        raise SystemExit(f"module_rules.toml: there is no operand {name!r}")


def read_program_rules(text: str, enums: Sequence[Any]) -> ProgramRules:
    """The rows, and the instructions of the schema's enum `Opcode`."""
    table = tomllib.loads(text)
    rows = [{**r, "names": tuple(r["names"])} for r in table["operand"]]
    operands = tuple(OperandRule(**r) for r in rows)
    rules = tuple(
        InstructionRule(**{**r, "names": tuple(r["names"])}) for r in table["instruction"]
    )
    known = {name for row in operands for name in row.names}
    instructions = []
    (opcodes,) = (e for e in enums if e.name == "Opcode")
    for value in opcodes.values:
        words = value.comment.partition("  ")[0].split() if value.comment[:1] != " " else []
        part = re.search(r"\((prepare|execute) only\)", value.comment)
        if unknown := [w for w in words if w.removesuffix("...") not in known]:
            raise SystemExit(f"module_rules.toml: {value.name}: no operand is {unknown[0]!r}")
        is_terminator = value.name in table["terminators"]
        found = Instruction(value.name, tuple(words), part[1] if part else "", is_terminator)
        instructions.append(found)
    constants = {
        v.name: e.name for e in enums if e.name in ("DType", "BufferClass") for v in e.values
    }
    return ProgramRules(tuple(instructions), operands, rules, constants)


# ---- C ----

_C_NAMES = {"executable.is_code": "aot_executable_is_code(s->executable)", "it": "it"}
_C_LENGTHS = {
    "program.blocks": "s->program->block_count",
    "program.messages": "s->program->message_count",
    "program.buffers": "s->program->buffer_count",
    "entry.inputs": "s->entry->input_count",
    "entry.outputs": "s->entry->output_count",
    "variant.executables": "s->variant->executable_count",
}
_C_PREFIXES = {"DType": "AOT_FBS_DTYPE", "BufferClass": "AOT_FBS_BUFFER_CLASS"}
_C_PARTS = {"": "ANYWHERE", "prepare": "IN_PREPARE", "execute": "IN_EXECUTE"}


def _c_dialect(rules: ProgramRules) -> Dialect:
    def name(text: str) -> str:
        if text in rules.constants:
            return f"{_C_PREFIXES[rules.constants[text]]}_{text}"
        return _C_NAMES.get(text) or "s->" + text.replace(".", "->")

    return Dialect(
        name,
        lambda text: _C_LENGTHS[text],
        lambda call, argument: C_CALLS[call].format(argument),
        {"and": "&&", "or": "||", "not": "!"},
    )


def make_header(rules: ProgramRules) -> str:
    """For program_verify.c: the instructions, and what is wrong with one of them."""
    dialect = _c_dialect(rules)
    lines = [
        f"// {HEAD}",
        "// The instructions, and what is wrong with one, or NULL.",
        "#ifndef AOT_PROGRAM_RULES_H_",
        "#define AOT_PROGRAM_RULES_H_",
        "",
        "// clang-format off",
        "",
        "// Operands are a letter each, as in is_operand; * is any number of the one before.",
        "typedef struct aot_instruction_rule_t {",
        "  const char *operands;",
        "  enum { ANYWHERE, IN_PREPARE, IN_EXECUTE } part;",
        "  bool is_terminator;",
        "} aot_instruction_rule_t;",
        "",
        "static const aot_instruction_rule_t instruction_rules[AOT_FBS_OPCODE_COUNT] = {",
    ]
    for i in rules.instructions:
        letters = "".join(
            rules.operand(o).letter + ("*" if o.endswith("...") else "") for o in i.operands
        )
        end = str(i.is_terminator).lower()
        lines.append(f'    [AOT_FBS_OPCODE_{i.name}] = {{"{letters}", {_C_PARTS[i.part]}, {end}}},')
    lines += [
        "};",
        "",
        "// What is around an operand or an instruction.",
        "typedef struct aot_around_t {",
        "  const aot_variant_t *variant;",
        "  const aot_entry_t *entry;",
        "  aot_code_t *program;",
        "  bool is_execute;",
        "  uint32_t rank;  // of the input or output named by the operand before",
        "  const aot_executable_t *executable;  // of a dispatch, and how many parameters it gives",
        "  uint32_t param_count;",
        "} aot_around_t;",
        "",
        "// Neither of the two is inlined, which would make the loader larger.",
        "__attribute__((noinline))",
        "static bool is_operand(const aot_around_t *s, char kind, uint32_t it) {",
        "  switch (kind) {",
    ]
    own = {o.letter: o for o in rules.operands if o.holds != NO_RULE}
    for row in own.values():
        lines += [f"    case '{row.letter}':", f"      return {translate(row.holds, dialect)};"]
    lines += [
        "    default:",
        "      return true;",
        "  }",
        "}",
        "",
        "// By letter: what is wrong where it is none.",
        "static const char *const operand_faults[26] = {",
        *(f"    ['{row.letter}' - 'a'] = \"{row.fault}\"," for row in own.values()),
        "};",
        "",
        "__attribute__((noinline))",
        "static const char *instruction_fault(const aot_around_t *s, uint32_t opcode) {",
    ]
    for rule in rules.rules:
        lines += _c_instruction_rule(rule, dialect)
    lines += ["  return NULL;", "}", "", "// clang-format on", ""]
    return "\n".join([*lines, "#endif  // AOT_PROGRAM_RULES_H_", ""])


def _c_instruction_rule(rule: InstructionRule, dialect: Dialect) -> Iterator[str]:
    opcodes = [f"opcode == AOT_FBS_OPCODE_{n}" for n in rule.names]
    condition = translate(rule.holds, dialect) if rule.holds else f"s->{SORTS[rule.of][1]}"
    # without the driver for GPUs, nobody reads who a variant's host is
    if rule.of == "hosted":
        yield "#if defined(AOT_VULKAN)"
    yield f"  if (({' || '.join(opcodes)}) && !({condition})) {{"
    yield f'    return "{rule.fault}";'
    yield "  }"
    if rule.of == "hosted":
        yield "#endif"


# ---- Python ----

_PYTHON_NAMES = {
    "program.scratch_offset": "s.scratch_offset",
    "executable.is_code": "(not s.executable.spirv)",
    "is_execute": "s.is_execute",
    "rank": "s.rank",
    "param_count": "s.param_count",
    "it": "it",
}
_PYTHON_SORTS = {"gpu": "s.is_gpu", "hosted": "s.variant.host is not None"}


def _python_dialect(rules: ProgramRules) -> Dialect:
    def name(text: str) -> str:
        if text in rules.constants:
            return f"fbs.{rules.constants[text]}.{text}"
        return _PYTHON_NAMES.get(text) or f"s.{text}"

    return Dialect(
        name,
        lambda text: f"len({name(text)})",
        lambda call, argument: argument,
        {"and": "and", "or": "or", "not": "not "},
    )


def make_python(rules: ProgramRules) -> list[str]:
    """Behind the tables' fields and rules: the same for aot/link/program.py."""
    dialect = _python_dialect(rules)
    lines = [
        "",
        "",
        "class OperandRule(NamedTuple):",
        '    """What an operand may be; `holds` takes what is around it, and it."""',
        "",
        "    kind: str",
        "    fault: str",
        "    holds: Callable[[Any, int], bool]",
        "",
        "",
        "class InstructionRule(NamedTuple):",
        '    """What must hold of some instructions."""',
        "",
        "    names: tuple[str, ...]",
        "    fault: str",
        "    holds: Callable[[Any], bool]",
        "",
        "",
        "class Signature(NamedTuple):",
        '    """An instruction\'s operands by name, the part that alone may have it, or "", and',
        '    whether it ends a block."""',
        "",
        "    operands: tuple[str, ...]",
        "    part: str",
        "    is_terminator: bool",
        "",
        "",
        "INSTRUCTIONS: dict[str, Signature] = {",
    ]
    for i in rules.instructions:
        operands = "".join(f'"{o}", ' for o in i.operands)
        lines.append(f'    "{i.name}": Signature(({operands}), "{i.part}", {i.is_terminator}),')
    lines += ["}", "", "OPERANDS: dict[str, OperandRule] = {"]
    for row in rules.operands:
        holds = translate(row.holds, dialect) if row.holds != NO_RULE else NO_RULE
        for name in row.names:
            lines.append(
                f'    "{name}": OperandRule("{row.kind}", "{row.fault}", lambda s, it: {holds}),'
            )
    lines += ["}", "", "INSTRUCTION_RULES: tuple[InstructionRule, ...] = ("]
    for rule in rules.rules:
        names = "".join(f'"{n}", ' for n in rule.names)
        holds = translate(rule.holds, dialect) if rule.holds else _PYTHON_SORTS[rule.of]
        lines.append(f'    InstructionRule(({names}), "{rule.fault}", lambda s: {holds}),')
    return [*lines, ")", ""]


# ---- words ----


def make_rows(rules: ProgramRules) -> list[str]:
    """The table of operands in docs/internals/file-format.md."""
    rows = ["| operand | is a | refused where there is |", "|---|---|---|"]
    for row in rules.operands:
        names = ", ".join(f"`{n}`" for n in row.names)
        rows.append(f"| {names} | {row.kind} | {row.fault or 'nothing'} |")
    return rows
