"""Code images for WebAssembly: modules that engines take, linked from LLVM's objects alone.

What holds of images for every machine is tested here for this one: equal parts once, linked again
the same, nothing from outside. That they compute is tested by test_wasm_kernels.
"""

from __future__ import annotations

import random

import pytest

import aot
from aot.backends.cpu.compile import compile_kernel
from aot.builder import Builder
from aot.errors import InternalError
from aot.link import wasm
from aot.link.code_image import CodeImage, link_image, merge_images
from tests.support.cpu_running import Job, make_job, target_of
from tests.support.cpu_tiles import chain, tile
from tests.support.llvm_objects import BODIES, build
from tests.support.node import require_node, run_image, run_node

TARGET = target_of("wasm32")
TABLE = "@t = private constant [{n} x i32] [{values}], align {alignment}"
# LLVM has no pool of constants here: what is read by index is one.
READ = """%p = getelementptr i32, ptr @t, i32 %x
 %v = load i32, ptr %p
 store i32 %v, ptr %d
 ret void"""


def table(*values: int, alignment: int = 4) -> str:
    text = ", ".join(f"i32 {v}" for v in values)
    return TABLE.format(n=len(values), values=text, alignment=alignment)


def made(body: str, more: str = "", name: str = "kernel") -> bytes:
    return build("wasm32", body, more, name)


def link(*objects: bytes) -> CodeImage:
    return link_image(objects, TARGET)


def constants_of(image: CodeImage) -> list[bytes]:
    return [image.data[p.offset : p.offset + p.length] for p in image.parts.constants]


def words(*values: int) -> bytes:
    return b"".join(v.to_bytes(4, "little") for v in values)


def test_equal_functions_and_constants_are_kept_once() -> None:
    one, two, three = (made(READ, table(*t)) for t in ((1, 2), (1, 3), (1, 2)))
    image = link(one, two, three, made(BODIES["store"]))
    assert (image.functions_met, image.functions_kept) == (4, 3)
    assert image.entries[0] == image.entries[2] != image.entries[1]
    assert constants_of(image) == [words(1, 2), words(1, 3)]
    assert (image.constant_bytes_met, image.constant_bytes_kept) == (24, 16)
    assert image.entries == image.offsets


def test_a_constant_inside_another_is_part_of_it() -> None:
    image = link(made(READ, table(2, 3)), made(READ, table(1, 2, 3, 4)))
    inner, outer = image.parts.constants
    assert inner.offset == outer.offset + 4
    assert image.constant_bytes_kept == 16


@pytest.mark.parametrize("alignment", [4, 16, 64])
def test_constants_lie_where_they_are_aligned(alignment: int) -> None:
    image = link(made(READ, table(7, 8, alignment=alignment)), made(READ, table(9)))
    assert all(p.offset % p.alignment == 0 for p in image.parts.constants)
    assert max(p.alignment for p in image.parts.constants) == alignment
    assert image.alignment == TARGET.page_bytes >= 64


def test_a_table_of_constants_is_read_where_the_image_lies() -> None:
    """The image's address is a global; the function gets the elements of its own table."""
    require_node()
    found = evaluate(
        link(made(READ, table(5, 6, 7)), made(READ, table(50, 60, 70))),
        "calls.push(read(0, 2), read(1, 0), read(0, 1));",
    )
    assert found == "7,50,6"


def evaluate(image: CodeImage, calls: str) -> str:
    """What calls of an image's functions give, each the word that it stores."""
    script = [
        f"const image = Uint8Array.from(Buffer.from('{image.data.hex()}', 'hex'));",
        "const memory = new WebAssembly.Memory({ initial: 2 });",
        "const at = 65536 + 64;",
        "new Uint8Array(memory.buffer).set(image, at);",
        "const table = new WebAssembly.Table({ element: 'anyfunc', initial: 10 });",
        "const int = (v, mutable = false) => new WebAssembly.Global({ value: 'i32', mutable }, v);",
        "const env = { memory, __indirect_function_table: table, __memory_base: int(at),",
        "  __table_base: int(3), __stack_pointer: int(65536, true) };",
        "new WebAssembly.Instance(new WebAssembly.Module(image), { env });",
        "const calls = [];",
        "const read = (f, x) => {",
        "  table.get(3 + f)(0, x, 0, 0);",
        "  return new Uint32Array(memory.buffer)[0];",
        "};",
        calls,
        "console.log(calls.join());",
    ]
    return run_node("-e", "\n".join(script)).strip()


def test_images_are_modules_with_these_imports_and_no_more() -> None:
    require_node()
    names = ["memory", "__indirect_function_table", "__stack_pointer", "__memory_base"]
    names.append("__table_base")
    for image in (link(), link(made(BODIES["one"])), link(made(READ, table(1)))):
        printed = run_node(
            "-e",
            f"const m = new WebAssembly.Module(Buffer.from('{image.data.hex()}', 'hex'));"
            "console.log(WebAssembly.Module.imports(m).map((i) => i.module + '.' + i.name).join(),"
            "  WebAssembly.Module.exports(m).length);",
        )
        assert printed.split() == [",".join(f"env.{name}" for name in names), "0"]


def objects() -> list[bytes]:
    cases = [chain(16), tile(4, 16, 8, 16)]
    kernels = [compile_kernel(case.make(), TARGET) for case in cases]
    tables = [made(READ, table(*t)) for t in ((1, 2, 3), (2, 3), (9, 9))]
    return [*kernels, *tables, made(BODIES["both"])]


def test_an_image_that_is_linked_again_is_the_same() -> None:
    image = link(*objects())
    again = merge_images([(image.data, image.parts)], "wasm32", TARGET.page_bytes)
    assert again.data == image.data
    assert again.parts == image.parts


def test_merged_images_share_and_still_compute() -> None:
    require_node()
    first = link(made(READ, table(1, 2)), made(BODIES["store"]))
    second = link(made(BODIES["store"]), made(READ, table(1, 2, 3)), made(READ, table(1, 2)))
    both = merge_images(
        [(first.data, first.parts), (second.data, second.parts)], "wasm32", TARGET.page_bytes
    )
    assert (both.functions_met, both.functions_kept) == (5, 3)
    assert both.entries[0] == both.entries[4] and both.entries[1] == both.entries[2]
    numbers = [sorted(set(both.entries)).index(e) for e in both.entries]
    calls = f"calls.push(read({numbers[0]}, 1), read({numbers[3]}, 2));"
    assert evaluate(both, calls) == "2,3"


def test_the_same_objects_give_the_same_bytes() -> None:
    assert link(*objects()).data == link(*objects()).data
    assert [made(READ, table(1))] * 2 == [made(READ, table(1)) for _ in range(2)]


def test_scratch_on_the_stack_is_given_back() -> None:
    """A kernel with arrays of its own runs any number of times."""
    require_node()
    body = """%a = alloca [64 x i32], align 64
 %p = getelementptr i32, ptr %a, i32 %x
 store volatile i32 %x, ptr %p
 %v = load volatile i32, ptr %p
 store i32 %v, ptr %d
 ret void"""
    calls = "for (let i = 0; i < 5000; ++i) read(0, i % 64);\ncalls.push(read(0, 41));"
    assert evaluate(link(made(body)), calls) == "41"


def test_what_needs_something_outside_is_refused() -> None:
    call = made("call void @other()\n ret void", "declare void @other()")
    with pytest.raises(InternalError, match="another type than kernels"):
        link(call.replace(b"\x60\x04\x7f\x7f\x7f\x7f\x00", b"\x60\x04\x7f\x7f\x7d\x7f\x00"))
    with pytest.raises(InternalError, match="'other' is not defined: generated code may call"):
        link(call)
    remainder = "%v = frem float 1.5, %f\n store float %v, ptr %d\n ret void"
    value = "%f = uitofp i32 %x to float\n "
    with pytest.raises(InternalError, match="'fmodf' is not defined"):
        link(made(value + remainder))
    with pytest.raises(InternalError, match="'g' is not defined"):
        link(made("store i32 1, ptr @g\n ret void", "@g = external hidden global i32"))
    writable = "@g = internal global i32 5"
    with pytest.raises(InternalError, match=r"section \.data\.g is writable"):
        link(made("store volatile i32 1, ptr @g\n ret void", writable))
    pointers = "@g = private constant [1 x ptr] [ptr @kernel]"
    read = "%p = getelementptr ptr, ptr @g, i32 %x\n %v = load volatile ptr, ptr %p\n ret void"
    with pytest.raises(InternalError, match="constants that need relocation"):
        link(made(read, pointers))
    with pytest.raises(InternalError, match="does not define function 'kernel'"):
        link(made(BODIES["one"], name="kern"))
    with pytest.raises(InternalError, match="is not a webassembly file"):
        link(build("x86-64-v2", BODIES["one"]))


def test_broken_objects_are_refused() -> None:
    """Whatever is cut off or changed: an error of ours, or an image."""
    rng = random.Random(5)
    whole = made(READ, table(1, 2, 3))
    for end in range(len(whole)):
        try_link(whole[:end])
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(rng.choice((1, 1, 1, 3))):
            broken[rng.randrange(8, len(broken))] = rng.randrange(256)
        try_link(bytes(broken))


def try_link(data: bytes) -> None:
    try:
        link(data)
    except InternalError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "80 80 80 80 00"),
        (1, "81 80 80 80 00"),
        (128, "80 81 80 80 00"),
        (-1, "ff ff ff ff 7f"),
        (2**31 - 1, "ff ff ff ff 07"),
        (-(2**31), "80 80 80 80 78"),
    ],
)
def test_padded_numbers(value: int, text: str) -> None:
    assert wasm.padded(value) == bytes.fromhex(text)


def test_a_kernel_that_fails_is_named() -> None:
    """The runner's own guard: what is read behind all memory is a fault, and whose."""
    require_node()
    case = chain(16)
    jobs: list[Job] = [make_job(case.make(), case.buffers, case.params, TARGET)]
    image = link(made("store i32 1, ptr inttoptr (i32 -16 to ptr)\n ret void"))
    with pytest.raises(AssertionError, match=f"in kernel {jobs[0].kernel.name}: job 0: "):
        run_image(image, jobs)
    image = link(made("store i8 1, ptr inttoptr (i32 196700 to ptr)\n ret void"))
    with pytest.raises(AssertionError, match="it wrote between buffers"):
        run_image(image, jobs)


def test_inspect_and_merge_know_the_functions() -> None:
    """Bytes of code by executable, and what merging two equal modules shares: all of it."""
    b = Builder()
    x = b.input("x", "f32[64, 64]")
    product = b.op("matmul", x, x)
    b.output("y", b.op("matmul", product, b.op("reduce_sum", product, axes=(1,), keepdims=True)))
    made = aot.compile(b.module(), targets=["wasm32"])
    (variant,) = aot.inspect(made.to_bytes())["variants"]
    sizes = [e["code_bytes"] for e in variant["executables"]]
    assert variant["arch"] == "wasm32" and len(sizes) > 1
    code = len(made.image.variants[0].code)
    assert all(size > 0 for size in sizes) and sum(sizes) <= code < sum(sizes) + 300
    both = aot.merge({"a": made, "b": made})
    assert both.image.variants[0].code == made.image.variants[0].code
    again = aot.compile(b.module(), targets=["wasm32"], cache=False)
    assert again.to_bytes() == made.to_bytes()
