"""Packages for browsers and Node: made with the documented commands, loaded, run and misused.

What a browser does with them, Node's own `fetch` and `instantiateStreaming` do, from a server.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import aot
from aot.builder import Builder
from aot.cli.main import cli
from aot.ir.types import DType
from aot.packaging import package
from aot.runtime import loader
from tests.support.browser import BROWSER, served, told_by_browser
from tests.support.node import (
    Call,
    make_package,
    require_node,
    require_toolchain,
    run_calls,
    run_node,
)
from tests.support.package_models import (
    HOST_TARGET,
    MOST_ROWS,
    error_of,
    expected,
    save_module,
    steps,
)
from tests.support.paths import ROOT
from tests.support.runtime_api import library_path

TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def use_built_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of this checkout, not an installed one."""
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(library_path()))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module for WebAssembly and for this machine."""
    path = tmp_path_factory.mktemp("modules") / "small.aotm"
    return save_module(path, ["wasm32", HOST_TARGET], metadata={"author": "né", "__proto__": "x"})


@pytest.fixture(scope="module")
def packaged(module: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small module's package: its JavaScript file."""
    require_node()
    return make_package(module, tmp_path_factory.mktemp("packages"))


def evaluate(folder: Path, *lines: str) -> Any:
    """What a script, a module in `folder` that prints JSON once, gives."""
    script = folder / "script.mjs"
    script.write_text("\n".join(lines))
    return json.loads(run_node(script))


# ---- use ----


def documented(heading: str) -> list[str]:
    """The commands of a section of docs/use/packaging.md, and its first block of JavaScript."""
    section = (
        (ROOT / "docs/use/packaging.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    )
    commands = [line.strip() for line in section.splitlines() if line.startswith("    aotc ")]
    script = section.split("```js\n")[1].split("```")[0]
    return [*commands, script]


def test_the_documented_commands_work(tmp_path: Path) -> None:
    """From a fresh folder, by the command line alone; then with the folder moved elsewhere."""
    require_node()
    require_toolchain()
    (tmp_path / "model.ir").write_text(
        'func @main(%x: f32[1, 4]) -> ("y") {\n  %1 = exp(%x) : f32[1, 4]\n  return(%1)\n}\n'
    )
    *commands, script = documented("wasm")
    assert [c.split()[1] for c in commands] == ["compile", "package"]
    for command in commands:
        words = command.replace("model.onnx", "model.ir").split()[1:]
        call = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import aot.cli.__main__"
        subprocess.run([sys.executable, "-c", call, *words], cwd=tmp_path, check=True)
    made = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert made == ["aot_runtime.mjs", "aot_runtime.wasm", "model.aotm", "model.mjs"]
    (tmp_path / "app").mkdir()
    (tmp_path / "out").rename(tmp_path / "app" / "out")
    setup = "const data = new Float32Array([0, 1, 2, 3]);\n"
    (tmp_path / "app" / "app.mjs").write_text(
        f"{setup}{script}\nconsole.log(JSON.stringify([...outputs.y.data]));\n"
    )
    found = json.loads(run_node(tmp_path / "app" / "app.mjs", cwd=tmp_path))
    np.testing.assert_allclose(found, np.exp(np.arange(4)), rtol=1e-6)


def test_shapes_and_state(module: Path, packaged: Path) -> None:
    """Three runs of unlike shapes, whose state goes on."""
    outcomes = run_calls(packaged, [Call({"x": x}) for x in steps()])
    for outcome, wanted in zip(outcomes, expected(module), strict=True):
        found = outcome.outputs["the sum"]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=TOLERANCE)


def test_what_a_model_says_of_itself(packaged: Path) -> None:
    found = evaluate(
        packaged.parent,
        'import { load } from "./small.mjs";',
        "const { name, entries, target, metadata, inputs, outputs } = await load();",
        "console.log(JSON.stringify({ name, entries, target, metadata, inputs, outputs }));",
    )
    eight = {"extent": 8, "min": 8, "max": 8, "text": ""}
    rows = {"extent": None, "min": 0, "max": MOST_ROWS, "text": "N"}
    assert found["inputs"] == [
        {"name": "x", "dtype": "f32", "dims": [rows, eight], "strings": None}
    ]
    assert [(o["name"], o["dtype"]) for o in found["outputs"]] == [("the sum", "f32")]
    assert (found["name"], found["entries"], found["target"]) == ("main", ["main"], "wasm32")
    assert found["metadata"] == {"author": "né", "__proto__": "x"}


def test_state_is_reset_and_not_shared(packaged: Path) -> None:
    found = evaluate(
        packaged.parent,
        'import { load } from "./small.mjs";',
        "const x = new Float32Array(8).fill(0.25);",
        "const shapes = { x: [1, 8] };",
        "const [model, other] = await Promise.all([load(), load()]);",
        'const run = (m) => m.run({ x }, { shapes })["the sum"].data[0];',
        "const first = run(model), second = run(model);",
        "const same = model.entry('main');",
        "const found = [run(other) === first, run(same) === first, second !== first];",
        "model.reset();",
        "found.push(run(model) === first);",
        "model.close();",
        "found.push(run(same) === second);",
        "console.log(JSON.stringify(found));",
    )
    assert found == [True] * 5


def test_memory_does_not_grow(packaged: Path) -> None:
    """Runs at shapes that were seen, failed ones, and models that come and go."""
    found = evaluate(
        packaged.parent,
        "const instantiate = WebAssembly.instantiate;",
        "let memory;",
        "WebAssembly.instantiate = async (...given) => {",
        "  const made = await instantiate(...given);",
        "  memory ??= made.instance?.exports.memory;",
        "  return made;",
        "};",
        'const { load } = await import("./small.mjs");',
        "const model = await load();",
        "const some = (m) => {",
        "  for (const rows of [2, 6, 1]) {",
        "    m.run({ x: { data: new Float32Array(8 * rows), shape: [rows, 8] } });",
        "  }",
        "  try { m.run({ x: { data: new Float32Array(56), shape: [7, 8] } }); } catch {}",
        "};",
        "const sizes = [];",
        "for (let i = 0; i < 400; ++i) {",
        "  some(model);",
        "  const other = model.entry('main');",
        "  some(other);",
        "  other.close();",
        "  sizes.push(memory.buffer.byteLength);",
        "}",
        "console.log(JSON.stringify([sizes[1], sizes.at(-1)]));",
    )
    assert found[0] == found[1] > 0


def test_every_element_type(tmp_path: Path) -> None:
    """Each goes through a kernel and comes back as it went; truth is not zero."""
    require_node()
    dtypes = ("f32", "f16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")
    b = Builder()
    for dtype in dtypes:
        b.output(f"{dtype} back", b.op("concat", *[b.input(dtype, f"{dtype}[3]")] * 2, axis=0))
    aot.compile(b.module(), targets=["wasm32"]).save(tmp_path / "m.aotm")
    inputs = {d: np.array([1, 0, 101]).astype(DType(d).numpy) for d in dtypes}
    given = {**inputs, "bool": np.array([1, 0, 101], np.uint8)}  # whatever isn't 0 is true
    outcome = run_calls(make_package(tmp_path / "m.aotm", tmp_path / "p"), [Call(given)])[0]
    assert not outcome.message
    for dtype in dtypes:
        wanted = np.concatenate([inputs[dtype]] * 2)
        found = outcome.outputs[f"{dtype} back"]
        np.testing.assert_array_equal(found.view(wanted.dtype), wanted, err_msg=dtype)


def test_strings_are_listed(tmp_path: Path) -> None:
    require_node()
    (tmp_path / "s.ir").write_text(
        'func @main(%x: i64[2], %n: i64[2]) -> ("y") strings ["x", "y"] of ["a", "", "\u00fc"] {\n'
        "  %1 = maximum(%x, %n) : i64[2]\n  return(%1)\n}\n"
    )
    aot.compile(tmp_path / "s.ir", targets=["wasm32"]).save(tmp_path / "s.aotm")
    make_package(tmp_path / "s.aotm", tmp_path)
    found = evaluate(
        tmp_path,
        'import { load } from "./s.mjs";',
        "const { inputs, outputs } = await load();",
        "console.log(JSON.stringify([...inputs, ...outputs].map(({strings}) => strings)));",
    )
    assert found == [["a", "", "\u00fc"], None, ["a", "", "\u00fc"]]


def test_models_that_were_merged_share_what_they_have(tmp_path: Path) -> None:
    require_node()
    paths = [tmp_path / "one.aotm", tmp_path / "two.aotm"]
    save_module(paths[0], ["wasm32", HOST_TARGET])
    b = Builder()
    b.output("y", b.op("tanh", b.input("x", "f32[5]")))
    aot.compile(b.module(), targets=["wasm32", HOST_TARGET]).save(paths[1])
    aot.merge(paths).save(tmp_path / "both.aotm")
    (variant, _) = aot.inspect(tmp_path / "both.aotm")["variants"]
    assert variant["target"] == "wasm32"
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    calls = [Call({"x": x}, "two"), *(Call({"x": step}, "one") for step in steps())]
    loader = make_package(tmp_path / "both.aotm", tmp_path / "package")
    first, *others = run_calls(loader, calls)
    np.testing.assert_allclose(first.outputs["y"], np.tanh(x), atol=TOLERANCE)
    for outcome, wanted in zip(others, expected(paths[0]), strict=True):
        np.testing.assert_allclose(outcome.outputs["the sum"], wanted, atol=TOLERANCE)


# ---- as browsers do it ----


@pytest.mark.parametrize("has_types", [True, False])
def test_from_a_server(packaged: Path, tmp_path: Path, has_types: bool) -> None:
    """By streaming where the server says what the runtime is; and each failure is told."""
    for file in packaged.parent.glob("*.*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "short.aotm").write_bytes((tmp_path / "small.aotm").read_bytes()[:-9])
    with served(tmp_path, has_types) as address:
        found = evaluate(
            tmp_path,
            'import { load } from "./small.mjs";',
            'import { loadModule } from "./aot_runtime.mjs";',
            "let streamed = 0;",
            "const stream = WebAssembly.instantiateStreaming;",
            "WebAssembly.instantiateStreaming = (...a) => (++streamed, stream(...a));",
            f"const runtime = '{address}/aot_runtime.wasm', module = '{address}/small.aotm';",
            "const models = [await load({ runtime, module }),",
            "  await load({ runtime: await fetch(runtime), module: await fetch(module) }),",
            f"  await loadModule({{ runtime, module, moduleBytes: {packaged_bytes(tmp_path)} }})];",
            "const x = { data: new Float32Array(8), shape: [1, 8] };",
            "const found = [streamed, models.map((m) => m.run({ x })['the sum'].shape)];",
            "const failing = [{ runtime, module: module + 'x' }, { runtime: module, module },",
            "  { runtime: runtime + 'x', module }, { runtime, module: runtime },",
            f"  {{ runtime, module: '{address}/short.aotm' }},",
            f"  {{ runtime, module: '{address}/short.aotm', moduleBytes: {2**20} }},",
            "  { runtime, module, moduleBytes: 100 },",
            "  { runtime, module, moduleBytes: 2 ** 32 + 9 },",
            "  { runtime, module: 'http://127.0.0.1:1/' }];",
            "for (const options of failing) {",
            "  const error = await loadModule(options).catch((e) => e);",
            "  found.push([error.name, error.status, error.message]);",
            "}",
            "console.log(JSON.stringify(found));",
        )
    streamed, shapes, *errors = found
    assert (streamed > 0) == has_types
    assert shapes == [[1, 4]] * 3
    assert [name for name, _, _ in errors] == ["AotError"] * 9
    statuses = ["io", "unsupported", "io", "not_a_module", "truncated", "io", "io", "memory", "io"]
    assert [status for _, status, _ in errors] == statuses
    messages = [message.replace(address, "") for _, _, message in errors]
    assert messages[0] == "cannot read /small.aotmx: status 404"
    assert messages[1].startswith("cannot start the runtime: ")
    assert messages[5].startswith("cannot read /short.aotm: it ends at byte ")
    assert messages[6] == "cannot read /small.aotm: it is longer than 100 bytes"
    assert messages[7] == f"out of memory: {2**32 + 9} bytes"


def packaged_bytes(folder: Path) -> int:
    return (folder / "small.aotm").stat().st_size


if BROWSER is not None:

    def test_in_a_browser(packaged: Path, tmp_path: Path) -> None:
        """On the page's own thread and in a worker, from a server, under a strict policy."""
        site = tmp_path / "site"
        shutil.copytree(packaged.parent, site)
        run_once = (
            'import { load } from "./small.mjs";\n'
            "const x = { data: new Float32Array(8).fill(0.25), shape: [1, 8] };\n"
            "const say = async () => [...(await load()).run({ x })['the sum'].data].join();\n"
        )
        (site / "worker.mjs").write_text(f"{run_once}say().then(postMessage);\n")
        (site / "page.mjs").write_text(
            f"{run_once}const worker = new Worker('worker.mjs', {{ type: 'module' }});\n"
            "worker.onmessage = async ({ data }) => {\n"
            "  tell([await say(), data]);\n"
            "};\n"
            "const tell = (what) => fetch('told?' + encodeURIComponent(JSON.stringify(what)));\n"
            "addEventListener('unhandledrejection', (event) => tell(String(event.reason)));\n"
        )
        policy = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'"
        (site / "index.html").write_text(
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<body><script type="module" src="page.mjs"></script>'
        )
        found = json.loads(told_by_browser(site, "index.html", tmp_path / "profile"))
        wanted = run_calls(packaged, [Call({"x": np.full((1, 8), 0.25, np.float32)})])[0]
        assert len(found) == 2
        for text in found:
            array = np.array(text.split(","), np.float32)
            np.testing.assert_array_equal(array, wanted.outputs["the sum"].ravel())


def test_from_bytes(packaged: Path) -> None:
    """What an app has read itself, and a runtime that was compiled before."""
    found = evaluate(
        packaged.parent,
        'import { load } from "./small.mjs";',
        'import { readFileSync } from "node:fs";',
        "const here = (name) => readFileSync(new URL(name, import.meta.url));",
        'const bytes = here("aot_runtime.wasm"), module = here("small.aotm");',
        "const padded = new Uint8Array(module.length + 3);",
        "padded.set(module, 3);",
        "const runtime = new WebAssembly.Module(bytes);",
        "const x = { data: new Float32Array(8), shape: [1, 8] };",
        "const found = [];",
        "for (const options of [{ runtime, module }, { runtime: bytes, module: padded.buffer",
        "  .slice(3) }, { module: padded.subarray(3) }]) {",
        "  found.push((await load(options)).run({ x })['the sum'].shape);",
        "}",
        "console.log(JSON.stringify(found));",
    )
    assert found == [[1, 4]] * 3


# ---- misuse ----

_ROWS = "new Float32Array(16)"
HOSTILE = [
    ("model.run()", "argument", "inputs must be an object with a property for each input"),
    ("model.run(null)", "argument", "inputs must be an object with a property for each input"),
    ("model.run('x')", "argument", "inputs must be an object with a property for each input"),
    (f"model.run({_ROWS})", "argument", "inputs must be an object with a property for each input"),
    ("model.run({})", "not_ready", 'input "x" is not given'),
    ("model.run(Object.create({ x: 1 }))", "not_ready", 'input "x" is not given'),
    (
        f"model.run({{ x: {_ROWS}, y: 1 }})",
        "not_found",
        'there is no input "y": inputs are "x"',
    ),
    (
        f"model.run(JSON.parse('{{\"__proto__\": 1}}'), {{ x: {_ROWS} }})",
        "not_found",
        'there is no input "__proto__": inputs are "x"',
    ),
    (
        f"model.run({{ x: {_ROWS} }}, {{ shapes: {{ z: [2, 8] }} }})",
        "not_found",
        'there is no input "z": inputs are "x"',
    ),
    (
        f"model.run({{ x: {_ROWS} }})",
        "shape",
        'input "x": its shape [N, 8] is open: give {data, shape}',
    ),
    *(
        (
            f"model.run({{ x: {value} }})",
            "dtype",
            'input "x": expected Float32Array, or {data, shape} with one',
        )
        for value in (
            *("1", "null", "undefined", "'text'", "[1, 2]", "{}", "{ data: [1] }"),
            *("new ArrayBuffer(64)", "new DataView(new ArrayBuffer(64))", "() => 1"),
        )
    ),
    (
        "model.run({ x: { data: new Float64Array(16), shape: [2, 8] } })",
        "dtype",
        'input "x": expected Float32Array for f32, found Float64Array',
    ),
    (
        "model.run({ x: { data: new BigInt64Array(16), shape: [2, 8] } })",
        "dtype",
        'input "x": expected Float32Array for f32, found BigInt64Array',
    ),
    *(
        (f"model.run({{ x: {{ data: {_ROWS}, shape: {shape} }} }})", "shape", f'input "x": {text}')
        for shape, text in (
            ("2", "its shape must be an array of numbers"),
            ("'2,8'", "its shape must be an array of numbers"),
            ("null", "its shape must be an array of numbers"),
            ("[2, 7]", "shape [2, 7] has 14 elements, its data 16"),
            ("[-2, -8]", "its shape [-2, -8] has an extent that is no count"),
            ("[1.5, 8]", "its shape [1.5, 8] has an extent that is no count"),
            ("[NaN, 8]", "its shape [NaN, 8] has an extent that is no count"),
            ("['2', 8]", "its shape [2, 8] has an extent that is no count"),
            ("[2**26, 2**26]", f"shape [{2**26}, {2**26}] has {2**52} elements, its data 16"),
            ("[16]", "expected shape [N, 8], found [16]"),
            ("[]", "expected shape [N, 8], found []"),
            ("Array(99).fill(1)", f"expected shape [N, 8], found [{', '.join(['1'] * 99)}]"),
        )
    ),
    (
        "model.run({ x: { data: new Float32Array(64), shape: [8, 8] } })",
        "shape",
        'input "x": expected shape [N, 8], found [8, 8]: axis 0, N, must be at most 6',
    ),
    (
        "model.run({ x: { data: structuredClone(gone, { transfer: [gone.buffer] }) && gone, "
        "shape: [2, 8] } })",
        "shape",
        'input "x": shape [2, 8] has 16 elements, its data 0',
    ),
    ("model.entry('no')", "not_found", 'there is no entry point "no": they are "main"'),
    ("model.entry()", "not_found", 'there is no entry point "undefined": they are "main"'),
    ("closed.run({})", "argument", "the model is closed"),
    ("closed.reset()", "argument", "the model is closed"),
    ("closed.entry('main')", "argument", "the model is closed"),
]


def test_misuse_is_told_and_changes_nothing(module: Path, packaged: Path) -> None:
    """After each the model runs as if nothing had been; its state is as it was."""
    cases = ",\n".join(f"() => {expression}" for expression, _, _ in HOSTILE)
    found = evaluate(
        packaged.parent,
        'import { load } from "./small.mjs";',
        "const model = await load(), closed = await load();",
        "closed.close();",
        "closed.close();",
        "const gone = new Float32Array(16);",
        f"const x = new Float32Array({json.dumps(steps()[0].ravel().tolist())});",
        "const run = () => [...model.run({ x: { data: x, shape: [2, 8] } })['the sum'].data];",
        f"const found = [{cases}].map((attempt) => {{",
        "  try {",
        "    attempt();",
        "    return ['no error'];",
        "  } catch (error) {",
        "    return [error.name, error.status, error.message];",
        "  }",
        "});",
        "console.log(JSON.stringify([...found, run()]));",
    )
    for (expression, status, message), error in zip(HOSTILE, found[:-1], strict=True):
        assert error == ["AotError", status, message], expression
    np.testing.assert_allclose(found[-1], expected(module)[0].ravel(), atol=TOLERANCE)


def test_hostile_arrays_reach_no_memory(packaged: Path) -> None:
    """Arrays that lie about themselves are refused: nothing is read or written beyond them."""
    found = evaluate(
        packaged.parent,
        'import { load } from "./small.mjs";',
        "const model = await load();",
        "class Named extends Uint8Array { get [Symbol.toStringTag]() { return 'Float32Array'; } }",
        "class Long extends Float32Array { get length() { return 16; } }",
        "class Wide extends Float32Array { get byteLength() { return 1 << 20; } }",
        "const found = [];",
        "for (const data of [new Named(16), new Long(2), new Wide(16)]) {",
        "  try {",
        "    model.run({ x: { data, shape: [2, 8] } });",
        "    found.push('ran');",
        "  } catch (error) {",
        "    found.push(error.name);",
        "  }",
        "}",
        "const x = { data: new Float32Array(16), shape: [2, 8] };",
        "model.reset();",
        "console.log(JSON.stringify([...found, [...model.run({ x })['the sum'].data]]));",
    )
    assert "ran" not in found[:3]
    assert found[3] == [0.0] * 8


def test_damaged_modules_are_refused(packaged: Path, tmp_path: Path) -> None:
    """Any byte may be wrong: what is loaded then is refused, or differs in weights alone."""
    shutil.copytree(packaged.parent, tmp_path / "p")
    found = evaluate(
        tmp_path / "p",
        'import { load } from "./small.mjs";',
        'import { readFileSync } from "node:fs";',
        'const runtime = new WebAssembly.Module(readFileSync(new URL("aot_runtime.wasm",',
        "  import.meta.url)));",
        'const good = readFileSync(new URL("small.aotm", import.meta.url));',
        "const found = { loaded: 0 };",
        "for (let at = 0; at < good.length; at += 7) {",
        "  const module = Uint8Array.from(good);",
        "  module[at] ^= 1 << (at % 8);",
        "  try {",
        "    const model = await load({ runtime, module });",
        "    model.run({ x: { data: new Float32Array(8), shape: [1, 8] } });",
        "    ++found.loaded;",
        "  } catch (error) {",
        "    if (error.name !== 'AotError') throw error;",
        "    found[error.status] = (found[error.status] ?? 0) + 1;",
        "  }",
        "}",
        "console.log(JSON.stringify(found));",
    )
    # weights and notes are verified on request, as everywhere
    assert found["checksum"] > found["loaded"]
    assert set(found) <= {"loaded", "checksum", "truncated", "not_a_module", "version", "malformed"}


def test_an_engine_without_vectors_is_told(packaged: Path, tmp_path: Path) -> None:
    shutil.copytree(packaged.parent, tmp_path / "p")
    found = evaluate(
        tmp_path / "p",
        'import { load } from "./small.mjs";',
        "const instantiate = WebAssembly.instantiate;",
        "WebAssembly.instantiate = (bytes, imports) => imports?.env",
        "  ? Promise.reject(new WebAssembly.CompileError('no simd here'))",
        "  : instantiate(bytes, imports);",
        "const error = await load().catch((e) => e);",
        "console.log(JSON.stringify([error.name, error.status, error.message]));",
    )
    text = "no variant of the model runs here: wasm32: no simd here"
    assert found == ["AotError", "unsupported", text]


# ---- what is refused when it is made ----


def test_what_is_missing_is_one_line(
    module: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    out = ("-o", tmp_path / "out")
    wasm = ("package", module, *out, "--format", "wasm")
    assert error_of(*wasm, capsys=capsys) == (
        "no C compiler for wasm32: pip install 'aotc[toolchain]', or name one with --cc, such as a "
        "WASI SDK's clang"
    )
    assert error_of(*wasm, "--cc", "noclang", capsys=capsys) == (
        "the C compiler 'noclang' of --cc is not there"
    )
    assert error_of(*wasm, "--cc", "gcc", capsys=capsys).startswith("the C compiler gcc failed: ")
    assert error_of(*wasm, "--target", HOST_TARGET, capsys=capsys) == (
        f"a wasm package needs a variant for WebAssembly, the module has {HOST_TARGET}: compile it "
        "with --target wasm32"
    )
    alone = ("package", module, *out, "--target", "wasm32", "--format")
    assert error_of(*alone, "executable", capsys=capsys) == (
        "there are no programs for wasm32: take --format wasm"
    )
    assert error_of(*alone, "static-library", capsys=capsys) == (
        "wasm32 has no static libraries: take --format wasm"
    )
    assert error_of(*alone, "source", capsys=capsys) == (
        "no C program runs code for wasm32: take --format wasm"
    )
    assert not (tmp_path / "out").exists()


def test_a_native_runtime_refuses_it_by_name(tmp_path: Path) -> None:
    path = save_module(tmp_path / "m.aotm", ["wasm32"])
    with pytest.raises(aot.RuntimeFailure, match="wasm32: made for wasm32"):
        aot.load(path)


def test_the_same_module_gives_the_same_bytes(module: Path, tmp_path: Path) -> None:
    require_toolchain()
    made = [package(module, "wasm", tmp_path / name) for name in ("one", "two")]
    first, second = ({n: (m.folder / n).read_bytes() for n in m.files} for m in made)
    assert first == second
    assert b"/work" not in first["aot_runtime.wasm"] and b"/tmp" not in first["aot_runtime.wasm"]


def test_names_are_no_code(tmp_path: Path) -> None:
    """A tensor's name is the model's to choose; in the package's comments it stays a name."""
    require_toolchain()
    b = Builder()
    b.output("*/ y", b.op("exp", b.input('x\n"); throw 1; //\u2028', "f32[2]")))
    aot.compile(b.module(), targets=["wasm32"]).save(tmp_path / "m.aotm")
    made = make_package(tmp_path / "m.aotm", tmp_path / "p")
    assert "\\u2028" in made.read_text()
    given = {'x\n"); throw 1; //\u2028': np.zeros(2, np.float32)}
    (outcome,) = run_calls(made, [Call(given)])
    np.testing.assert_array_equal(outcome.outputs["*/ y"], [1, 1])


def test_sizes_are_told(module: Path, tmp_path: Path) -> None:
    require_toolchain()
    arguments = ["package", str(module), "--format", "wasm", "-o", str(tmp_path), "--json"]
    facts = json.loads(CliRunner().invoke(cli, arguments).output)
    assert facts["files"]["small.aotm"] == facts["module_bytes"]
    assert facts["files"]["aot_runtime.wasm"] == facts["runtime_bytes"]
    # the native variant is left out, and the kernels are a part of what is left
    assert facts["kernels_bytes"] < facts["module_bytes"] < module.stat().st_size
