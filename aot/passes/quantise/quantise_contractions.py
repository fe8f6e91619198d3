"""quantise-contractions: computes a quantised model's contractions, which it expresses in floats,
on its integers.

Requires: constants folded, but for `dequantize`, which folding leaves to this pass; no region yet.
Ensures: a `conv` or `matmul` of quantised operands is `conv_integer` or `matmul_integer` where
    `plan_of` finds a way, its weights in 8 bits, its zero points and its bias in the sums;
    `quantize` has no scale that is known, where 8 bits are the result: the factor stands before it;
    what moves or compares elements only does so on the integers. A `matmul` of floats and
    quantised weights is `matmul_blocked`, whose weights stay in their bits; the filters of a `conv`
    of floats stay in 8 bits, with their scales behind it, and so do the weights of a recurrent
    layer with one scale. No `dequantize` of a constant is left: it is written as small ops, which
    fold.
    Counts the multiply-adds in integers, and the others by reason, where the model is quantised.
Never: changes a sum. A number of 8 bits differs from the model's definition in exact arithmetic by
    one step at most, and only where that is within 1e-4 of a tie. Touches weights and
    activations that are floats.
"""

from __future__ import annotations

from aot.analysis.control import control_ops
from aot.errors import InternalError, advice
from aot.ir.graph import Function, Module, Op, Value
from aot.ir.record import Kind, contraction_of
from aot.ir.rewriter import Rewriter
from aot.ops.blocked import MATMUL_BLOCKED
from aot.ops.contraction import CONV, MATMUL
from aot.ops.elementwise import CAST, MUL, SUB
from aot.ops.layout_rules import estimated
from aot.ops.quantization import DEQUANTIZE, QUANTIZE
from aot.passes.base import Pass, PassContext
from aot.passes.quantise import block_weights, byte_filters, byte_recurrences
from aot.passes.quantise.factors import F32, I32, cast, known, stored_of
from aot.passes.quantise.integer_contractions import RECORDS, plan_of
from aot.passes.quantise.moves import RULES
from aot.passes.simplify.dce import remove_dead
from aot.passes.simplify.rewriting import RuleSet

NAME = "quantise-contractions"
FEATURE = "integer-contractions"
MAX_SWEEPS = 256  # a `quantize` rises one op a sweep
IN_INTEGERS = "in integers"
_COUNTER = "multiply_adds: "
SWITCHED_OFF = "--disable integer-contractions"

_RULE_SET = RuleSet(NAME, RULES)


def run(module: Module, context: PassContext) -> None:
    for function in module.functions.values():
        if not _is_quantised(function):
            continue
        is_enabled = context.options.is_enabled(FEATURE)
        if is_enabled:
            context.count(NAME, "rewritten", rewrite(function))
        is_blocked = context.options.is_enabled(block_weights.FEATURE)
        context.count(NAME, "blocked", keep_blocks(function, is_enabled=is_blocked))
        _choose_activations(function, context.options.activations)
        remove_dead(function)
        with advice("the count of multiply-adds in integers"):
            for reason, amount in multiply_adds(function, is_enabled=is_enabled).items():
                context.count(NAME, _COUNTER + reason, amount)
        _expand_constants(function)


def multiply_adds_of(context: PassContext) -> dict[str, int]:
    """The counts of `multiply_adds` over all functions of a compile; empty if no function is
    quantised."""
    counters = context.statistics.get(NAME, {})
    return {
        key.removeprefix(_COUNTER): amount
        for key, amount in counters.items()
        if key.startswith(_COUNTER)
    }


def _is_quantised(function: Function) -> bool:
    """Whether a function contains quantised values, or did."""
    return any(
        op.record in (QUANTIZE, DEQUANTIZE, MATMUL_BLOCKED)
        or (op.record in RECORDS and stored_of(op.operands[0]) is not None)
        for op in function.walk()
    )


def rewrite(function: Function) -> int:
    """Applies the rules until none applies; returns how many rewrites there were."""
    total = 0
    for _ in range(MAX_SWEEPS):
        rewritten = _RULE_SET.apply(function)
        total += rewritten
        if not rewritten:
            return total
    raise InternalError(f"rules of {NAME} go in circles")


def keep_blocks(function: Function, *, is_enabled: bool = True) -> int:
    """Rewrites float products with quantised weights to use the stored numbers (or floats, if not
    `is_enabled`); returns how many."""
    found = 0
    if is_enabled:
        found = _keep_layers(function)
    rules = {MATMUL.name: block_weights.as_blocked, CONV.name: byte_filters.as_bytes}
    if not is_enabled:
        rules = {MATMUL_BLOCKED.name: block_weights.in_floats}
    for op in list(function.walk()):
        rule = rules.get(op.name)
        # what could be integers is floats throughout where that is switched off
        if rule is not None and (not is_enabled or isinstance(plan_of(op), str)):
            rewriter = Rewriter(function).at(op)
            made = rule(op, rewriter)
            if made is not None:
                rewriter.replace_op(op, [made])
                found += 1
    return found


def _keep_layers(function: Function) -> int:
    """Rewrites recurrent layers with quantised weights to use the stored numbers; returns how
    many."""
    found = 0
    for op in [op for op in function.walk() if op.record.kind is Kind.RECURRENCE]:
        rewriter = Rewriter(function).at(op)
        made = byte_recurrences.as_bytes(op, rewriter)
        if made is not None:
            rewriter.replace_op(op, made.results)
            found += 1
    return found


def _choose_activations(function: Function, activations: str) -> None:
    """Marks the products whose left side may be rounded to 8 bits, as the options say."""
    if activations == "model":
        return
    for op in list(function.walk()):
        if op.record is MATMUL_BLOCKED:
            attrs = {**op.attrs, "may_quantize": activations == "int8"}
            rewriter = Rewriter(function).at(op)
            rewriter.replace_op(
                op, rewriter.create(op.record, op.operands, attrs, op.origin).results
            )


def multiply_adds(function: Function, *, is_enabled: bool = True) -> dict[str, int]:
    """Multiply-adds of a function's contractions: those in integers under IN_INTEGERS, others by
    the reason why not. Dynamic extents are estimated as for layouts.
    """
    found: dict[str, int] = {}
    for op in control_ops(function):
        dims = contraction_of(op)
        if dims is None:
            continue
        amount = 1
        for extent in (*op.result.type.dims, dims.k):
            amount *= max(1, estimated(extent))
        reason = _reason(op, is_enabled)
        found[reason] = found.get(reason, 0) + amount
    return found


def _reason(op: Op, is_enabled: bool) -> str:
    if op.record is MATMUL_BLOCKED and not op.attrs["may_quantize"]:
        return f"only the weights are quantised, in {op.attrs['bits']} bits"
    if op.record.kind is Kind.CONTRACTION and op.record not in RECORDS:
        return IN_INTEGERS
    plan = plan_of(op)
    if isinstance(plan, str):
        return IN_INTEGERS if op.result.type.dtype.is_integer else plan
    return SWITCHED_OFF if not is_enabled else "the dtypes of the operands do not fit"


def _expand_constants(function: Function) -> None:
    """Expands each `dequantize` of a known value into ops that fold."""
    for op in list(function.walk()):
        if op.record is not DEQUANTIZE or known(op.operands[0]) is None:
            continue
        x, scale, zero = [*op.operands, None][:3]
        assert x is not None and scale is not None
        rewriter = Rewriter(function).at(op)
        wide: Value = cast(op, rewriter, x, I32)
        if zero is not None:
            start = cast(op, rewriter, zero, I32)
            wide = rewriter.create(SUB, [wide, start], {}, op.origin).result
        factors = [cast(op, rewriter, v, F32) for v in (wide, scale)]
        product = rewriter.create(MUL, factors, {}, op.origin).result
        if product.type.dtype is not op.result.type.dtype:
            to = op.result.type.dtype
            product = rewriter.create(CAST, [product], {"to": to}, op.origin).result
        rewriter.replace_op(op, [product])


QUANTISE_CONTRACTIONS = Pass(NAME, run, __doc__)
