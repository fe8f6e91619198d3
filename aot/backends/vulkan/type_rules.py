"""The types that SPIR-V's instructions want of their operands, checked on a finished function.

Owns the rules of "SPIR-V Specification", version 1.3, section 3.32, for what the assembler writes,
as far as they are about types; Vulkan adds that fields of bits are of 32 bits. A driver may crash
on what breaks them, so a shader that does is never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aot.backends.vulkan.spirv import Glsl, Op
from aot.base.records import dataclass
from aot.errors import InternalError


def _named(*names: str) -> frozenset[Op]:
    return frozenset(op for op in Op if any(op.name.startswith(name) for name in names))


# operands have the result's type, which is of integers, floats or booleans
_INTEGERS = frozenset({Op.I_ADD, Op.I_SUB, Op.I_MUL, Op.U_DIV, Op.S_DIV, Op.S_NEGATE, Op.NOT})
_INTEGERS |= _named("BITWISE_")
_FLOATS = frozenset({Op.F_ADD, Op.F_SUB, Op.F_MUL, Op.F_DIV, Op.F_NEGATE})
_LOGIC = _named("LOGICAL_")
_SHIFTS = _named("SHIFT_")
_FIELDS = _named("BIT_FIELD_")
# operands have one type, of integers or floats, and the result is as many booleans
_INTEGER_COMPARISONS = _named("I_EQUAL", "I_NOT", "U_GREATER", "S_GREATER", "U_LESS", "S_LESS")
_FLOAT_COMPARISONS = _named("F_ORD_", "F_UNORD_")
# (kind of the operand, kind of the result)
_CONVERSIONS = {
    Op.CONVERT_F_TO_U: ("float", "integer"),
    Op.CONVERT_F_TO_S: ("float", "integer"),
    Op.CONVERT_S_TO_F: ("integer", "float"),
    Op.U_CONVERT: ("integer", "integer"),
    Op.S_CONVERT: ("integer", "integer"),
    Op.F_CONVERT: ("float", "float"),
}
_CHANGES_WIDTH = (Op.U_CONVERT, Op.S_CONVERT, Op.F_CONVERT)
_DOTS = (Op.S_DOT, Op.U_DOT, Op.S_U_DOT)
_TYPES = _named("TYPE_")
_VALUES = frozenset({Op.CONSTANT_TRUE, Op.CONSTANT_FALSE, Op.CONSTANT, Op.CONSTANT_NULL})
_VALUES |= {Op.CONSTANT_COMPOSITE, Op.VARIABLE, Op.FUNCTION}
# the function's own: their first words are no type and result
_WITHOUT_RESULT = frozenset(
    {
        *(Op.STORE, Op.CONTROL_BARRIER, Op.LOOP_MERGE, Op.SELECTION_MERGE, Op.LABEL, Op.BRANCH),
        *(Op.BRANCH_CONDITIONAL, Op.RETURN, Op.FUNCTION_END, Op.COOPERATIVE_MATRIX_STORE_KHR),
    }
)


@dataclass(frozen=True)
class _Type:
    """Attributes:
    kind: "boolean", "integer", "float", "vector", "pointer", "array", "struct" or "other".
    width: bits of a number, or elements of a vector.
    parts: ids of the element's type, of the pointee's, or of the members'.
    storage: class of a pointer.
    """

    kind: str
    width: int = 0
    parts: tuple[int, ...] = ()
    storage: int = 0


def check_types(declarations: Sequence[int], function: Sequence[int]) -> None:
    """Raises an InternalError where an instruction's operands have types that it does not take.

    Args:
        declarations: the words of types, constants and global variables.
        function: the words of the function.
    """
    checker = _Checker()
    for op, words in instructions(declarations):
        checker.declare(op, words)
    body = list(instructions(function))
    for op, words in body:
        if op not in _WITHOUT_RESULT:
            checker.types[words[1]] = words[0]
    for op, words in body:
        checker.check(op, words)


def instructions(words: Sequence[int]) -> Iterator[tuple[Op, Sequence[int]]]:
    """Each instruction's opcode and its words behind that."""
    at = 0
    while at < len(words):
        count = words[at] >> 16
        yield Op(words[at] & 0xFFFF), words[at + 1 : at + count]
        at += count


class _Checker:
    """What the ids of a module are.

    Attributes:
        types: the type's id of each value.
    """

    def __init__(self) -> None:
        self.types: dict[int, int] = {}
        self._known: dict[int, _Type] = {}

    def declare(self, op: Op, words: Sequence[int]) -> None:
        if op in _VALUES:
            self.types[words[1]] = words[0]
        elif op in _TYPES:
            self._known[words[0]] = _declared(op, words[1:])

    def check(self, op: Op, words: Sequence[int]) -> None:
        if op is Op.STORE:
            target = self._of(words[0])
            is_pointee = target.parts == (self._of_operand(words[1]),)
            self._want(op, words, target.kind == "pointer" and is_pointee)
        elif op is Op.BRANCH_CONDITIONAL:
            self._want(op, words, self._of(words[0]).kind == "boolean")
        elif op not in _WITHOUT_RESULT and op is not Op.FUNCTION:
            self._want(op, words, self._fits(op, words[0], words[2:]))

    def _fits(self, op: Op, result: int, operands: Sequence[int]) -> bool:
        """Whether an instruction with a result takes its operands."""
        element = self._element(result)
        kind = element.kind
        if op in _INTEGERS or op in _FLOATS or op in _LOGIC:
            same = self._of_operand(operands[0]) if op in _LOGIC else result
            wanted = "integer" if op in _INTEGERS else "float" if op in _FLOATS else "boolean"
            return kind == wanted and all(self._of_operand(o) == same == result for o in operands)
        if op in _SHIFTS:
            by = self._element(self._of_operand(operands[1]))
            is_alike = self._are_as_many(result, operands[1])
            return (
                kind == by.kind == "integer"
                and is_alike
                and self._of_operand(operands[0]) == result
            )
        if op in _FIELDS:
            places = (self._element(self._of_operand(o)).kind for o in operands[1:])
            is_word = kind == "integer" and element.width == 32
            return (
                is_word and self._of_operand(operands[0]) == result and set(places) == {"integer"}
            )
        if op in _INTEGER_COMPARISONS or op in _FLOAT_COMPARISONS:
            a, b = map(self._of_operand, operands)
            wanted = "integer" if op in _INTEGER_COMPARISONS else "float"
            is_alike = a == b and self._are_as_many(result, operands[0])
            return kind == "boolean" and is_alike and self._element(a).kind == wanted
        if op in _CONVERSIONS:
            source = self._element(self._of_operand(operands[0]))
            is_other = op not in _CHANGES_WIDTH or source.width != element.width
            is_alike = is_other and self._are_as_many(result, operands[0])
            return (source.kind, kind) == _CONVERSIONS[op] and is_alike
        return self._fits_others(op, result, operands)

    def _fits_others(self, op: Op, result: int, operands: Sequence[int]) -> bool:
        of = self._of_operand
        if op is Op.SELECT:
            condition = self._element(of(operands[0])).kind
            is_alike = self._known[of(operands[0])].kind == "boolean" or self._are_as_many(
                result, operands[0]
            )
            is_boolean = condition == "boolean" and is_alike
            return is_boolean and of(operands[1]) == of(operands[2]) == result
        if op is Op.PHI:
            return all(of(value) == result for value in operands[::2])
        if op is Op.BITCAST:
            return self._bits(result) == self._bits(of(operands[0]))
        if op is Op.LOAD:
            return self._known[of(operands[0])].parts == (result,)
        if op is Op.ACCESS_CHAIN:
            return self._reaches(result, operands)
        if op in (Op.COMPOSITE_CONSTRUCT, Op.COMPOSITE_EXTRACT):
            return self._is_composite(op, result, operands)
        if op is Op.EXT_INST:
            return self._fits_glsl(result, operands[1], operands[2:])
        if op in _DOTS:
            words = {(self._known[of(o)].kind, self._known[of(o)].width) for o in operands[:2]}
            return words == {("integer", 32)} and self._known[result].kind == "integer"
        return True

    def _is_composite(self, op: Op, result: int, operands: Sequence[int]) -> bool:
        """Whether elements are those of a vector; what else there is has its own operands."""
        made = result if op is Op.COMPOSITE_CONSTRUCT else self._of_operand(operands[0])
        vector = self._known[made]
        if vector.kind != "vector":
            return True
        if op is Op.COMPOSITE_EXTRACT:
            return vector.parts == (result,) and operands[1] < vector.width
        types = [self._of_operand(o) for o in operands]
        elements = {t: self._known[t] for t in types}
        is_alike = all(v.parts == vector.parts or (t,) == vector.parts for t, v in elements.items())
        counts = (v.width if v.kind == "vector" else 1 for v in map(elements.__getitem__, types))
        return is_alike and sum(counts) == vector.width

    def _reaches(self, result: int, operands: Sequence[int]) -> bool:
        """Whether a chain of indices leads to what the result points to."""
        base, end = self._known[self._of_operand(operands[0])], self._known[result]
        if base.kind != "pointer" or end.kind != "pointer" or base.storage != end.storage:
            return False
        (at,) = base.parts
        for index in operands[1:]:
            if self._element(self._of_operand(index)).kind != "integer":
                return False
            inner = self._known[at]
            if not inner.parts or (inner.kind == "struct" and len(inner.parts) != 1):
                return False
            at = inner.parts[0]
        return (at,) == end.parts

    def _fits_glsl(self, result: int, number: int, operands: Sequence[int]) -> bool:
        element = self._element(result)
        if number == Glsl.UNPACK_HALF_2X16:
            word = self._known[self._of_operand(operands[0])]
            return (word.kind, word.width) == ("integer", 32) and element.kind == "float"
        is_of_integers = number in (Glsl.U_MIN, Glsl.U_MAX)
        wanted = "integer" if is_of_integers else "float"
        is_alike = all(self._of_operand(o) == result for o in operands)
        # Vulkan: integers of the extended set have 32 bits
        return element.kind == wanted and is_alike and not (is_of_integers and element.width != 32)

    def _of_operand(self, id_: int) -> int:
        if id_ not in self.types:
            raise InternalError(f"spir-v: nothing defines the operand %{id_}")
        return self.types[id_]

    def _of(self, id_: int) -> _Type:
        return self._known[self._of_operand(id_)]

    def _element(self, type_id: int) -> _Type:
        found = self._known[type_id]
        return self._known[found.parts[0]] if found.kind == "vector" else found

    def _count(self, type_id: int) -> int:
        found = self._known[type_id]
        return found.width if found.kind == "vector" else 1

    def _are_as_many(self, result: int, operand: int) -> bool:
        """Whether an operand has as many elements as the result."""
        return self._count(result) == self._count(self._of_operand(operand))

    def _bits(self, type_id: int) -> int:
        return self._count(type_id) * self._element(type_id).width

    def _want(self, op: Op, words: Sequence[int], is_right: bool) -> None:
        if not is_right:
            kinds = [self._text(w) for w in words if w in self.types or w in self._known]
            raise InternalError(f"spir-v: {op.name} does not take these types: {', '.join(kinds)}")

    def _text(self, id_: int) -> str:
        found = self._known[self.types.get(id_, id_)]
        element = self._element(self.types.get(id_, id_))
        number = f"{element.kind}{element.width or ''}"
        return f"%{id_} {number}x{found.width}" if found.kind == "vector" else f"%{id_} {number}"


def _declared(op: Op, words: Sequence[int]) -> _Type:
    match op:
        case Op.TYPE_BOOL:
            return _Type("boolean", 1)
        case Op.TYPE_INT:
            return _Type("integer", words[0])
        case Op.TYPE_FLOAT:
            return _Type("float", words[0])
        case Op.TYPE_VECTOR:
            return _Type("vector", words[1], (words[0],))
        case Op.TYPE_POINTER:
            return _Type("pointer", parts=(words[1],), storage=words[0])
        case Op.TYPE_ARRAY | Op.TYPE_RUNTIME_ARRAY:
            return _Type("array", parts=(words[0],))
        case Op.TYPE_STRUCT:
            return _Type("struct", parts=tuple(words))
    return _Type("other")
