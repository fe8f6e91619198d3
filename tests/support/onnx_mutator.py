"""Damaged ONNX models, and what the compiler makes of them in processes of their own.

    python tests/support/onnx_mutator.py SEED COUNT [--compile]

Models are small: those of ONNX's own tests, of module_seeds.py, and such with If, Loop and Scan.
A damaged one is imported and verified, or compiled and loaded, under limits of memory and time;
whatever is neither done nor refused with one of the compiler's errors is printed, a line of JSON
each, and the model is left in the folder.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx import numpy_helper as numpy_of

Random = random.Random

MOST_MODEL_BYTES = 20_000
MOST_MEMORY_BYTES = 2 << 30  # above what the process has when it starts
MOST_SECONDS = 25
BATCH = 40  # models of a process
INTS = (0, -1, 1, 2, -2, 3, 7, -7, 31, 64, 1 << 16, 1 << 31, -(1 << 31), 1 << 40, 1 << 62)
INTS += (-(1 << 63), (1 << 63) - 1)
FLOATS = (0.0, -1.0, 0.5, float("nan"), float("inf"), -float("inf"), 1e30, 1e-30, -1e10)
DIM_NAMES = ("N", "x y", "N*2", "-1", "", "N+1", "32*N", "\x00", "é", "N<=4")
PATHS = ("../../etc/passwd", "/etc/passwd", ".", "..", "a/../../b", "/dev/zero", "", "a" * 5000)
PATHS += ("model.onnx", "C:\\x", "\\\\host\\x", ".//../x", "/proc/self/mem")
NUMBERS = ("0", "-1", "x", "99999999999999999999", "1e3", "", " 4", "0x10")
NAMES = ("", "x/y", "../../x", "a\nb", "é" * 200, '"')
OPSETS = (0, 1, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25, 99, -1)


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)


def values_of(graph: GraphProto) -> list[str]:
    """Names of what there is in a graph."""
    made = [name for node in graph.node for name in node.output if name]
    return [*(i.name for i in graph.input), *(t.name for t in graph.initializer), *made]


def change_attribute(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    attributes = [a for node in graph.node for a in node.attribute]
    if not attributes:
        return
    chosen = rng.choice(attributes)
    if chosen.type == AttributeProto.INT:
        chosen.i = rng.choice(INTS)
    elif chosen.type == AttributeProto.FLOAT:
        chosen.f = rng.choice(FLOATS)
    elif chosen.type == AttributeProto.STRING:
        chosen.s = rng.choice((b"", b"nonsense", b"\xff", b"SAME_UPPER", b"linear", b"reflect"))
    elif chosen.type == AttributeProto.INTS:
        how = rng.randrange(4) if chosen.ints else 1
        if how == 0:
            del chosen.ints[rng.randrange(len(chosen.ints))]
        elif how == 1:
            chosen.ints.append(rng.choice(INTS))
        else:
            chosen.ints[rng.randrange(len(chosen.ints))] = rng.choice(INTS)
    elif chosen.type == AttributeProto.TENSOR and chosen.t.dims:
        chosen.t.dims[rng.randrange(len(chosen.t.dims))] = rng.choice(INTS)
    if rng.randrange(10) == 0:
        chosen.type = rng.randrange(15)


def change_input(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    if not graph.input:
        return
    chosen = rng.choice(graph.input)
    dims = chosen.type.tensor_type.shape.dim
    how = rng.randrange(10)
    if how == 0 and dims:
        del dims[0]
    elif how == 1:
        dims.add().dim_value = rng.choice((0, 1, 2, 3))
    elif how == 2 and dims:
        rng.choice(dims).dim_param = rng.choice(DIM_NAMES)
    elif how in (3, 4) and dims:
        rng.choice(dims).dim_value = rng.choice(INTS)
    elif how == 5:
        chosen.type.tensor_type.elem_type = rng.choice((*range(24), 99, -1))
    elif how == 6:
        chosen.type.ClearField("tensor_type") if rng.random() < 0.5 else chosen.ClearField("type")
    elif how == 7:
        graph.input.remove(chosen)
    elif how == 8:
        graph.input.add().CopyFrom(chosen)
    else:
        chosen.name = rng.choice(NAMES)


def change_initializer(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    if not graph.initializer:
        return
    chosen = rng.choice(graph.initializer)
    how = rng.randrange(7)
    if how == 0 and chosen.dims:
        chosen.dims[rng.randrange(len(chosen.dims))] = rng.choice(INTS)
    elif how == 1:
        chosen.data_type = rng.choice((*range(23), 99))
    elif how == 2:
        chosen.raw_data = chosen.raw_data[: rng.randrange(len(chosen.raw_data) + 1)]
    elif how == 3:
        chosen.data_location = TensorProto.EXTERNAL
        chosen.ClearField("raw_data")
        for key, choices in (("location", PATHS), (rng.choice(("offset", "length")), NUMBERS)):
            entry = chosen.external_data.add()
            entry.key, entry.value = key, rng.choice(choices)
    elif how == 4:
        array = numpy_of.to_array(chosen).copy()
        if array.size and array.dtype.kind in "fiu":
            value = rng.choice(FLOATS if array.dtype.kind == "f" else INTS)
            array.reshape(-1)[rng.randrange(array.size)] = np.array(value).astype(array.dtype)
            chosen.CopyFrom(numpy_of.from_array(array, chosen.name))
    elif how == 5:  # empty, twice, of one dim more
        array = numpy_of.to_array(chosen)
        flat = array.reshape(-1)
        others = (flat[:0], np.concatenate([flat, flat]), array.reshape((*array.shape, 1)))
        chosen.CopyFrom(numpy_of.from_array(rng.choice(others), chosen.name))
    else:
        chosen.name = rng.choice(("", "x", "y", f"{chosen.name}2"))


def change_node(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    if not graph.node:
        return
    chosen = rng.choice(graph.node)
    names = ["", "nothing", *(n for g in graphs_of(model.graph) for n in values_of(g))]
    how = rng.randrange(10)
    if how < 2 and chosen.input:
        chosen.input[rng.randrange(len(chosen.input))] = rng.choice(names)
    elif how == 2 and chosen.output:
        chosen.output[rng.randrange(len(chosen.output))] = rng.choice(names)
    elif how == 3 and chosen.input:
        del chosen.input[-1]
    elif how == 4:
        chosen.input.append(rng.choice(names))
    elif how == 5:
        chosen.output.append(rng.choice(("extra", "")))
    elif how == 6 and chosen.output:
        del chosen.output[rng.randrange(len(chosen.output))]
    elif how == 7 and chosen.attribute:
        del chosen.attribute[rng.randrange(len(chosen.attribute))]
    elif how == 8:
        chosen.domain = rng.choice(("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "x"))
    else:
        again = NodeProto()
        again.CopyFrom(chosen)
        for number, name in enumerate(again.output):
            again.output[number] = name and f"{name}_again"
        graph.node.insert(rng.randrange(len(graph.node) + 1), again)


def change_outputs(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    how = rng.randrange(4)
    if how == 0:
        names = ["gone", "", *values_of(graph)]
        shape = [rng.choice((0, 1, 2, 5, "N", None)) for _ in range(rng.randrange(5))]
        info = helper.make_tensor_value_info(rng.choice(names), rng.choice((1, 6, 7, 9)), shape)
        graph.value_info.append(info)
    elif graph.output:
        chosen = rng.choice(graph.output)
        if how == 1:
            chosen.name = rng.choice(["gone", "", *values_of(graph)])
        elif how == 2:
            graph.output.remove(chosen)
        else:
            graph.output.add().CopyFrom(chosen)


def change_versions(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    for opset in model.opset_import:
        opset.version = rng.choice(OPSETS)
    if rng.randrange(5) == 0:
        model.ir_version = rng.choice((0, 1, 3, 99, -1, 1 << 62))


def nest(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    """The whole graph some levels deep in Ifs."""
    for level in range(rng.choice((1, 2, 5, 30))):
        outputs = [name for node in model.graph.node for name in node.output if name]
        if not outputs or model.ByteSize() > 300_000:
            break
        out = onnx.ValueInfoProto(name=outputs[-1])
        branch = helper.make_graph(list(model.graph.node), "b", [], [out])
        choose = helper.make_node(
            "If", ["chosen"], [f"if{level}"], then_branch=branch, else_branch=branch
        )
        del model.graph.node[:]
        model.graph.node.append(choose)
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=f"if{level}"))
    model.graph.input.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, []))


def make_function(model: ModelProto, graph: GraphProto, rng: Random) -> None:
    """A node becomes a call, sometimes of a function that calls itself."""
    if not graph.node:
        return
    chosen = rng.choice(graph.node)
    made = model.functions.add(name="F", domain="f", input=["a"], output=["b"])
    made.node.add().CopyFrom(chosen)
    if rng.randrange(3) == 0:
        made.node.add(op_type="F", domain="f", input=["a"], output=["b"])
    chosen.op_type, chosen.domain = "F", "f"
    model.opset_import.append(helper.make_opsetid("f", 1))


MUTATIONS: tuple[Callable[[ModelProto, GraphProto, Random], None], ...] = (
    *([change_attribute] * 4),
    *([change_input] * 3),
    *([change_initializer] * 3),
    *([change_node] * 4),
    *([change_outputs] * 2),
    *(change_versions, nest, make_function),
)


def graft(model: ModelProto, other: ModelProto, rng: Random) -> None:
    """A node of another model behind what there is."""
    names = values_of(model.graph)
    if not other.graph.node or not names:
        return
    chosen = NodeProto()
    chosen.CopyFrom(rng.choice(other.graph.node))
    for number, name in enumerate(chosen.input):
        chosen.input[number] = name and rng.choice(names)
    for number, name in enumerate(chosen.output):
        chosen.output[number] = name and f"grafted{number}"
    model.graph.node.append(chosen)
    model.graph.output.append(onnx.ValueInfoProto(name=chosen.output[0] if chosen.output else ""))


def damage_bytes(data: bytes, rng: Random) -> bytes:
    """Some bytes changed, left out or put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at, how = rng.randrange(len(changed)), rng.randrange(4)
        if how < 2:
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 2 and len(changed) > 16:
            del changed[at : at + rng.randrange(1, 9)]
        else:
            changed[at:at] = rng.randbytes(rng.randrange(1, 5))
    return bytes(changed)


def damaged(data: bytes, seeds: list[tuple[str, bytes]], rng: Random) -> bytes:
    """A damaged copy of a seed."""
    if rng.randrange(5) == 0:
        return damage_bytes(data, rng)
    model = onnx.load_from_string(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        try:
            if rng.randrange(7) == 0:
                graft(model, onnx.load_from_string(rng.choice(seeds)[1]), rng)
            else:
                graph = rng.choice(list(graphs_of(model.graph)))
                rng.choice(MUTATIONS)(model, graph, rng)
        except (ValueError, TypeError, OverflowError):  # protobuf or numpy holds no such thing
            continue
    return model.SerializeToString()


# ---- what the compiler makes of them ----


def seeds_of() -> list[tuple[str, bytes]]:
    """Small models by name; ONNX's tests are many, so ours come several times."""
    from tests.support import module_seeds, onnx_node_suite
    from tests.support.control_models import CONTROLLED
    from tests.support.random_control import random_control

    cases, _ = onnx_node_suite.cases()
    found = [(name, case.model.SerializeToString()) for name, case in sorted(cases.items())]
    own = [(name, graph()) for name, (graph, _) in module_seeds.GRAPHS.items()]
    control = [(name, c.model().SerializeToString()) for name, c in CONTROLLED.items()]
    control += [(f"random {n}", random_control(n).SerializeToString()) for n in range(8)]
    return [(n, d) for n, d in found if len(d) < MOST_MODEL_BYTES] + own * 16 + control * 4


OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, {}, {"targets": ["vulkan-1.1"]}, {"storage": "fp16"}, {"targets": ["wasm32"]}),
    {"optimize": "size"},
)


def attempt(path: Path, options: dict[str, Any], is_compiled: bool) -> dict[str, Any] | None:
    """What happens that must not; None where the model is taken or refused."""
    import aot
    from aot.errors import CompileError, RuntimeFailure, UnsupportedError
    from aot.frontends.onnx import import_onnx
    from aot.ir.verifier import verify

    try:
        with np.errstate(all="ignore"):
            if not is_compiled:
                imported = import_onnx(str(path))
                # an output may be named twice, as ONNX Runtime takes it; only then is it no text
                names = imported.main.result_names
                if len(set(names)) == len(names):
                    verify(imported)
                return None
            module = aot.compile(str(path), jobs=1, **options)
        aot.load(module.to_bytes(), device="auto").close()
    except (CompileError, UnsupportedError):
        return None
    except RuntimeFailure as error:
        if error.status in ("not_found", "unsupported"):  # of what is for another machine
            return None
        return {"error": error.status, "message": str(error)}
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return {"error": type(error).__name__, "message": str(error)[:1000], "where": place}
    return None


Attempt = tuple[Path, dict[str, Any]]  # a model, and how it is compiled


def attempt_all(attempts: list[Attempt], is_compiled: bool, write: Callable[[bytes], Any]) -> None:
    """Writes a line for each, under limits of what it may take."""
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit += MOST_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most_seconds = resource.getrlimit(resource.RLIMIT_CPU)
    for path, options in attempts:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(usage.ru_utime + usage.ru_stime) + MOST_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, most_seconds))
        signal.alarm(4 * MOST_SECONDS)
        write(json.dumps(attempt(path, options, is_compiled)).encode() + b"\n")


def attempt_in_child(attempts: list[Attempt], is_compiled: bool) -> list[dict[str, Any] | None]:
    """The same in a child; what it dies of is the last that is given, fewer than there are."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        attempt_all(attempts, is_compiled, lambda line: os.write(write_end, line))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        found: list[dict[str, Any] | None] = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    if len(found) < len(attempts):
        code = os.waitstatus_to_exitcode(status)
        found.append({"error": "killed", "message": f"exit status {code}"})
    return found


def attempt_apart(attempts: list[Attempt], is_compiled: bool) -> list[dict[str, Any] | None]:
    """What happens to each that must not, in children, which may also die. What a limit ended is
    tried again in a child of its own: those before it may have left something behind."""
    found: list[dict[str, Any] | None] = []
    while len(found) < len(attempts):
        found += attempt_in_child(attempts[len(found) :], is_compiled)
        last = found[-1]
        if last is not None and last["error"] == "killed":
            (found[-1],) = attempt_in_child([attempts[len(found) - 1]], is_compiled)
    for number, fault in enumerate(found):
        if fault is not None and fault["error"] == "MemoryError":
            (found[number],) = attempt_in_child([attempts[number]], is_compiled)
    return found


def main(seed: int, count: int, is_compiled: bool) -> int:
    """Prints what is found; the exit status is 1 where something is."""
    # before there are children
    import aot.backends.cpu
    import aot.driver.pipeline  # noqa: F401

    rng, seeds = random.Random(seed), seeds_of()
    folder = Path(tempfile.mkdtemp(prefix="onnx-mutator-"))
    findings = 0
    chosen: list[tuple[str, bytes]] = []
    for begin in range(0, count, BATCH):
        attempts, names = [], []
        for number in range(begin, min(begin + BATCH, count)):
            chosen = chosen or rng.sample(seeds, len(seeds))  # each once, then each again
            name, data = chosen.pop()
            path = folder / str(number) / "model.onnx"
            path.parent.mkdir()
            path.write_bytes(damaged(data, seeds, rng))
            attempts.append((path, rng.choice(OPTIONS)))
            names.append(name)
        results = attempt_apart(attempts, is_compiled)
        for name, (path, options), found in zip(names, attempts, results, strict=True):
            if found is None:
                shutil.rmtree(path.parent)
                continue
            findings += 1
            facts = {"model": str(path), "of": name, "options": options, **found}
            sys.stdout.write(json.dumps(facts) + "\n")
            sys.stdout.flush()
    if not findings:
        shutil.rmtree(folder)
    sys.stdout.write(f"{count} models, {findings} findings\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), "--compile" in sys.argv))
