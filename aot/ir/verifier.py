"""The IR verifier: checks structure, dominance, use lists, types and names.

Owns what a well-formed module is. Called on our own output (`InternalError`) and on what users
wrote as text (`CompileError`). Never changes what it checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from aot.errors import AotError, CompileError, InternalError
from aot.ir.builtin import EXTENT, PENDING
from aot.ir.compare import map_dims
from aot.ir.dims import Dim, DimExpr, substitute, symbols
from aot.ir.equalities import TypeRule
from aot.ir.graph import Block, Function, FunctionRef, Module, Op, Value, walk
from aot.ir.record import Call
from aot.ir.states import state_variables
from aot.ir.text.printer import KEYWORDS, print_op
from aot.ir.types import DType, TensorType


def verify(
    subject: Module | Function,
    *,
    error: type[AotError] = InternalError,
    during: str = "",
    is_ruled: bool = False,
    is_resolved: bool = False,
) -> None:
    """Checks every invariant of a module or of one function.

    Calls of functions by name are checked in modules only.

    Args:
        error: what to raise; CompileError for what a user wrote.
        during: what was being done, for the message.
        is_ruled: the shape rules have been asked already, as the parser does.
        is_resolved: no shape change may be pending.

    Raises:
        error: with the invariant that does not hold and the text of the op.
    """
    try:
        if isinstance(subject, Function):
            _FunctionCheck(subject, None, is_ruled).run()
        else:
            _check_module(subject, is_ruled)
        if is_resolved:
            _check_resolved(subject)
    except _Broken as broken:
        head = f"{during}: {broken}" if during else str(broken)
        if issubclass(error, CompileError):
            raise error(head, broken.op_text.splitlines()) from None
        raise error(f"{head}\n  {broken.op_text}" if broken.op_text else head) from None


class _Broken(Exception):
    """The exception for a violated invariant of the IR.

    Attributes:
        op_text: the op that breaks it; "" where none does.
    """

    def __init__(self, message: str, op: Op | None = None) -> None:
        super().__init__(message)
        self.op_text = "" if op is None else print_op(op)


def _check_module(module: Module, is_ruled: bool) -> None:
    for name, function in module.functions.items():
        if function.name != name:
            raise _Broken(f"function {function.name!r} is in its module as {name!r}")
        _FunctionCheck(function, module, is_ruled).run()


def _check_resolved(subject: Module | Function) -> None:
    functions = [subject] if isinstance(subject, Function) else list(subject.functions.values())
    for function in functions:
        for op in function.walk():
            if op.record is PENDING:
                raise _Broken(f"function {function.name!r}: a shape change is pending", op)


class _FunctionCheck:
    def __init__(self, function: Function, module: Module | None, is_ruled: bool) -> None:
        self.function = function
        self.module = module
        self.is_ruled = is_ruled
        self.rule = TypeRule(function)
        self.visible: set[Value] = set()
        self.defined: set[Value] = set()
        self.position: dict[Op, None] = {}
        self.states: dict[str, DType] = {}
        self.given: set[str] = set()  # symbols that values give
        self.hidden: set[str] = set()  # those of them that are not given yet, or no more

    def run(self) -> None:
        self.find_given()
        self.check_header()
        self.check_block(self.function.block, self.function)
        self.check_uses()
        self.check_results()

    def fail(self, message: str, op: Op | None = None) -> _Broken:
        return _Broken(f"function {self.function.name!r}: {message}", op)

    def check_header(self) -> None:
        function = self.function
        if function.kind not in KEYWORDS:
            raise self.fail(f"kind is {function.kind!r}, expected one of {', '.join(KEYWORDS)}")
        for kind, names in (
            ("inputs", [v.name for v in function.inputs if v.name]),
            ("results", [n for n in function.result_names if n]),
        ):
            repeated = next((n for n, times in Counter(names).items() if times > 1), None)
            if repeated is not None and function.kind == "function":
                raise self.fail(f"two {kind} are named {repeated!r}")
        known = self.input_symbols() | set(function.dim_names)
        for assumption in function.assumptions:
            for dim in (assumption.left, assumption.right):
                unknown = sorted(symbols(dim) - known)
                if unknown:
                    raise self.fail(
                        f"assumption {assumption.left} == {assumption.right} has "
                        f"symbol {unknown[0]}, which no input has"
                    )
        if self.rule.equalities.is_contradictory:
            raise self.fail("its assumptions contradict each other")

    def input_symbols(self) -> set[str]:
        """Symbols that inputs, growing states and values define."""
        return self.outer_symbols() | self.given

    def outer_symbols(self) -> set[str]:
        """Symbols that inputs and growing states define."""
        lengths = [v.length for v in state_variables(self.function) if v.length is not None]
        dims = [*lengths, *(d for v in self.function.inputs for d in v.type.dims)]
        return {n for d in dims for n in symbols(d)}

    def find_given(self) -> None:
        """Checks that each symbol is defined once, and collects those that ops define."""
        for op in self.function.walk():
            if op.record is EXTENT and isinstance(op.attrs["dim"], DimExpr):
                name = str(op.attrs["dim"])
                if name in self.given or name in self.outer_symbols():
                    raise self.fail(f"symbol {name} is given a second time", op)
                self.given.add(name)
        self.hidden = set(self.given)

    def check_dims(self, op: Op) -> None:
        """Checks that symbols defined by values are used only where the defining op dominates."""
        if op.record is EXTENT:
            self.hidden.discard(str(op.attrs["dim"]))
        if not self.hidden:
            return
        used: set[str] = set()

        def note(dim: Dim) -> Dim:
            used.update(symbols(dim))
            return dim

        map_dims(op.attrs, note)
        for value in op.results:
            strides = () if value.type.layout is None else value.type.layout.strides
            used.update(name for dim in (*value.type.dims, *strides) for name in symbols(dim))
        early = sorted(used & self.hidden)
        if early:
            raise self.fail(f"symbol {early[0]} is used where no value has given it", op)

    def check_block(self, block: Block, owner: Op | Function) -> None:
        if block.owner is not owner:
            raise self.fail(
                "a block does not know its owner", owner if isinstance(owner, Op) else None
            )
        for number, value in enumerate(block.args):
            if value.owner is not block or value.index != number:
                raise self.fail(f"block argument {number} does not know its place")
            self.check_type(value.type, None)
            self.define(value, None)
        self.check_links(block)
        if block.last is None or not block.last.record.is_terminator:
            raise self.fail("a block does not end with a terminator", block.last)
        wanted = "return" if isinstance(owner, Function) else "yield"
        if block.last.name != wanted:
            raise self.fail(
                f"a block of {'a function' if wanted == 'return' else 'an op'} "
                f"ends with {block.last.name}, expected {wanted}",
                block.last,
            )
        mark: list[Value] = list(block.args)
        hidden = set(self.hidden)
        for op in block:
            if op.record.is_terminator and op is not block.last:
                raise self.fail("a terminator stands inside its block", op)
            self.check_op(op)
            mark.extend(op.results)
        if owner is not self.function:
            self.visible.difference_update(mark)
            self.hidden = hidden

    def check_links(self, block: Block) -> None:
        before: Op | None = None
        count = 0
        for op in block:
            if op.parent is not block or op.prev is not before:
                raise self.fail("the linked list of a block is broken", op)
            if op in self.position:
                raise self.fail("an op stands in two places", op)
            self.position[op] = None
            before = op
            count += 1
        if block.last is not before or len(block) != count:
            raise self.fail(f"a block says it has {len(block)} ops, {count} are linked", before)

    def define(self, value: Value, op: Op | None) -> None:
        if value in self.defined:
            raise self.fail("a value is defined twice", op)
        self.defined.add(value)
        self.visible.add(value)

    def check_op(self, op: Op) -> None:
        for number, value in enumerate(op.operands):
            if value is None:
                continue
            if value not in self.visible:
                raise self.fail(
                    f"operand {number} is not defined before the op, in its block or one around it",
                    op,
                )
            if (op, number) not in value.uses:
                raise self.fail(f"operand {number} does not list the op among its uses", op)
        self.check_call(op)
        if self.given:
            self.check_dims(op)
        if op.record.writes:
            self.check_writes(op)
        if op.record.is_state:
            self.check_state(op)
        outer = self.visible
        for block in op.blocks:
            if op.record.is_isolated:
                self.visible = set()
            self.check_block(block, op)
            self.visible = outer
        for number, value in enumerate(op.results):
            if value.owner is not op or value.index != number:
                raise self.fail(f"result {number} does not know its place", op)
            self.check_type(value.type, op)
            self.define(value, op)

    def check_type(self, type: TensorType, op: Op | None) -> None:
        if type.problem:
            raise self.fail(f"type {type} is wrong: {type.problem}", op)

    def check_call(self, op: Op) -> None:
        """Checks an op's operands, attributes, constraints and result types against its record."""
        is_ruled = op.record.results_from == "rule"
        if is_ruled and self.is_ruled:
            return
        try:
            call = (op.record.call if is_ruled else op.record.check)(
                op.operand_types, op.attrs, op.origin
            )
        except CompileError as error:
            raise self.fail(str(error), op) from None
        # references and shape rules read attributes of ops that have a shape rule directly
        if is_ruled and call.attrs.keys() != op.attrs.keys():
            missing = ", ".join(sorted(call.attrs.keys() - op.attrs.keys()))
            raise self.fail(f"attributes are not complete: {missing} is missing", op)
        if op.record.results_from == "block":
            self.check_body(op, call)
            return
        if op.record.results_from == "callee":
            self.check_callee(op)
            return
        if len(call.result_types) != len(op.results):
            raise self.fail(f"the shape rule gives {len(call.result_types)} results", op)
        for ruled, value in zip(call.result_types, op.results, strict=True):
            if not self.rule.accepts(ruled, value.type):
                raise self.fail(
                    f"result {value.index} has type {value.type}, the shape rule gives {ruled}", op
                )
        if self.function.kind == "function":
            for assumed in call.assumptions:
                if not self.rule.equalities.are_equal(assumed.left, assumed.right):
                    raise self.fail(
                        f"the op relies on {assumed.left} == {assumed.right}, which "
                        "the function does not assume",
                        op,
                    )

    def check_body(self, op: Op, call: Call) -> None:
        body = op.record.body
        assert body is not None
        if len(op.blocks) != body.block_count:
            wanted = "one block" if body.block_count == 1 else f"{body.block_count} blocks"
            raise self.fail(f"expected {wanted}, found {len(op.blocks)}", op)
        for block in op.blocks:
            given = [v.type for v in block.args]
            self.check_types_match("block argument", given, body.argument_types(call), op)
            yielded = block.last.operand_types if block.last is not None else ()
            try:
                results = body.result_types(call, [t for t in yielded if t is not None])
            except CompileError as error:
                raise self.fail(str(error), op) from None
            self.check_types_match("yielded value", results, [v.type for v in op.results], op)

    def check_state(self, op: Op) -> None:
        """Checks that all uses of a state variable agree on its dtype."""
        name, dtype = str(op.attrs["variable"]), op.result.type.dtype
        known = self.states.setdefault(name, dtype)
        if known is not dtype:
            raise self.fail(f"state variable {name!r} is {dtype} here and {known} before", op)

    def check_writes(self, op: Op) -> None:
        """Checks that no op writes a constant, even through views."""
        for number in op.record.writes:
            value = op.operands[number]
            while value is not None and value.op is not None:
                if value.op.record.name == "constant":
                    raise self.fail(f"operand {number} is written, and is a constant", op)
                view_of = value.op.record.view_of
                value = None if view_of is None else value.op.operands[view_of]

    def check_callee(self, op: Op) -> None:
        if self.module is None:
            return
        reference = next((a for a in op.attrs.values() if isinstance(a, FunctionRef)), None)
        callee = None if reference is None else self.module.functions.get(reference.name)
        if callee is None:
            raise self.fail("the module has no function of that name", op)
        given = op.attrs.get("dims", ())
        assert isinstance(given, tuple)
        if len(given) != len(callee.dim_names):
            raise self.fail(
                f"function {callee.name!r} has {len(callee.dim_names)} dim "
                f"parameters, {len(given)} are given",
                op,
            )
        values: dict[str, Dim] = dict(zip(callee.dim_names, given, strict=True))  # type: ignore[arg-type]
        self.check_types_match(
            f"input of {callee.name!r}",
            [_with_dims(v.type, values) for v in callee.inputs],
            op.operand_types,
            op,
        )
        self.check_types_match(
            f"result of {callee.name!r}",
            [_with_dims(v.type, values) for v in callee.results],
            [v.type for v in op.results],
            op,
        )

    def check_types_match(self, what: str, inner: object, outer: object, op: Op) -> None:
        """Checks that a body's types equal those of its op, layouts included."""
        given, wanted = list(inner), list(outer)  # type: ignore[call-overload]
        if len(given) != len(wanted):
            raise self.fail(f"expected {len(wanted)} of {what}, found {len(given)}", op)
        for number, (a, b) in enumerate(zip(given, wanted, strict=True)):
            if a is None or b is None:
                raise self.fail(f"{what} {number} has no counterpart", op)
            if not a.lies_as(b) or not self.rule.accepts(a.with_dims(a.dims), b):
                raise self.fail(f"{what} {number} has type {a}, the op has {b}", op)

    def check_uses(self) -> None:
        for value in self.defined:
            for op, number in value.uses:
                if op not in self.position or not (
                    number < len(op.operands) and op.operands[number] is value
                ):
                    raise self.fail(
                        f"value {value.name or value.index!r} lists a use that is not there",
                        value.op,
                    )

    def check_strings(self) -> None:
        """Checks that string tensors are i64 inputs or results, and that the string table has no
        duplicates.
        """
        strings = self.function.strings
        if strings is None:
            return
        found = {v.name: v for v in self.function.inputs}
        found |= dict(zip(self.function.result_names, self.function.results, strict=False))
        for name in strings.names:
            if name not in found or found[name].type.dtype is not DType.I64:
                raise self.fail(
                    f"the strings of {name!r} are no input or result of i64",
                    self.function.block.last,
                )
        if len(set(strings.table)) < len(strings.table):
            raise self.fail("the table of strings has one twice", self.function.block.last)

    def check_updates(self) -> None:
        """Checks that each update is a result with its input's type, and that no input has two."""
        function = self.function
        inputs = {v.name: v for v in function.inputs}
        results = dict(zip(function.result_names, function.results, strict=False))
        if len(set(function.updates.values())) < len(function.updates):
            raise self.fail("two results update one input", function.block.last)
        for result, name in function.updates.items():
            if result not in results or name not in inputs:
                raise self.fail(
                    f"result {result!r} updates input {name!r}: there are no such two",
                    function.block.last,
                )
            a, b = results[result].type, inputs[name].type
            if (a.dtype, a.dims) != (b.dtype, b.dims):
                raise self.fail(
                    f"result {result!r} is {a}, the input that it updates {b}", function.block.last
                )

    def check_results(self) -> None:
        function = self.function
        count = len(function.block.terminator.operands)
        if len(function.results) != count:
            raise self.fail("a result is absent", function.block.last)
        if len(function.result_names) != count and (
            function.result_names or function.kind == "function"
        ):
            raise self.fail(
                f"has {count} results and {len(function.result_names)} names for them",
                function.block.last,
            )
        self.check_updates()
        self.check_strings()
        if len(function.bindings) not in (0, len(function.inputs) + count):
            raise self.fail(
                f"has {len(function.bindings)} bindings for {len(function.inputs)} "
                f"inputs and {count} results",
                function.block.last,
            )
        for name in (b for b in function.bindings if isinstance(b, str)):
            if name not in function.dim_names:
                raise self.fail(
                    f"the buffer class {name} is none of its dim parameters", function.block.last
                )
        if len(function.schedule) not in (0, len(set(function.results))):
            raise self.fail(
                f"has schedules of {len(function.schedule)} stages for {count} results",
                function.block.last,
            )
        known = self.input_symbols() | set(function.dim_names)
        for op in walk(function.block):
            for value in op.results:
                unknown = sorted(n for d in value.type.dims for n in symbols(d) if n not in known)
                if unknown:
                    raise self.fail(
                        f"type {value.type} has symbol {unknown[0]}, which no input has", op
                    )


def _with_dims(type: TensorType, values: Mapping[str, Dim]) -> TensorType:
    """A callee's type with the caller's dims."""
    layout = type.layout and type.layout.map_dims(lambda d: substitute(d, values))
    return TensorType(type.dtype, tuple(substitute(d, values) for d in type.dims), layout)
