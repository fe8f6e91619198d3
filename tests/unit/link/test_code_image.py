"""Code images: equal functions and constants once, nothing from outside, every relocation in place.

Objects come from LLVM, so that what is linked is what the compiler sees; broken ones are made by
hand from them. That linked code also runs is tested by test_cpu_kernels and test_cpu_qemu.
"""

from __future__ import annotations

import struct

import pytest

from aot.backends.cpu.compile import compile_kernel
from aot.errors import InternalError
from aot.link.code_image import CodeImage, ImageParts, Part, Reference, link_image, merge_images
from aot.link.elf import read_object
from aot.link.relocations import AARCH64, ARM, RISCV, X86_64, Kind
from tests.support.cpu_running import Job, make_job, native_targets, run_native, target_of
from tests.support.cpu_tiles import chain, tile
from tests.support.llvm_objects import BODIES, build


def test_equal_functions_and_constants_are_kept_once() -> None:
    target = target_of("x86-64-v2")
    objects = [
        build("x86-64-v2", BODIES[n]) for n in ("constants", "other", "constants", "both", "one")
    ]
    image = link_image(objects, target)
    assert image.functions_met == 5 and image.functions_kept == 4
    assert image.entries[0] == image.entries[2]
    assert len(set(image.entries)) == 4
    # constants 16, other 16, constants 16, both 32 bytes come in; two distinct vectors stay.
    assert image.constant_bytes_met == 80 and image.constant_bytes_kept == 32
    assert image.alignment == 4096
    assert all(entry % 32 == 0 for entry in image.entries)
    one, two = (struct.pack("<4f", 1, 2, 3, last) for last in (4, 5))
    assert image.data.count(one) == 1 and image.data.count(two) == 1


def test_functions_with_unlike_constants_differ() -> None:
    """The code's bytes are equal, only what they point to is not."""
    objects = [build("x86-64-v2", BODIES[n]) for n in ("constants", "other")]
    first, second = (read_object(o) for o in objects)
    code = [next(s.data for s in o.sections.values() if s.is_code) for o in (first, second)]
    assert code[0] == code[1]
    assert link_image(objects, target_of("x86-64-v2")).functions_kept == 2


# Functions whose code is equal and that differ in what it refers to.
ALIKE = {
    "1, then 2": ((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 5.0)),
    "2, then 1": ((1.0, 2.0, 3.0, 5.0), (1.0, 2.0, 3.0, 4.0)),
    "1 twice": ((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0)),
}
TARGETS = ("x86-64-v2", "aarch64-generic", "armv7-neon", "thumbv7em", "riscv64")


def two_stores(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[str, str]:
    """A body and its tables: it loads two vectors and stores both."""
    return (
        "%a = load volatile <4 x float>, ptr @first\n"
        " %b = load volatile <4 x float>, ptr @second\n"
        " store <4 x float> %a, ptr %d, align 4\n"
        " %p = getelementptr i8, ptr %d, i32 16\n"
        " store <4 x float> %b, ptr %p, align 4\n ret void",
        "\n".join(
            f"@{name} = private unnamed_addr constant <4 x float> "
            f"<{', '.join(f'float {v}' for v in values)}>, align 16"
            for name, values in (("first", first), ("second", second))
        ),
    )


@pytest.mark.parametrize("target", TARGETS)
def test_equal_code_that_refers_to_other_things_stays_apart(target: str) -> None:
    made = {k: build(target, *two_stores(*v)) for k, v in ALIKE.items()}
    image = link_image([made["1, then 2"], made["2, then 1"], made["1, then 2"]], target_of(target))
    assert image.functions_kept == 2
    assert image.entries[0] == image.entries[2] != image.entries[1]
    assert image.constant_bytes_kept == 32  # both have both, once
    assert link_image(list(made.values()), target_of(target)).functions_kept == 3


def test_equal_constants_are_one_that_is_aligned_as_the_strictest_needs() -> None:
    def body(alignment: int, volatile: str) -> tuple[str, str]:
        return (
            f"%a = load {volatile} <4 x float>, ptr @t, align {alignment}\n"
            " store <4 x float> %a, ptr %d, align 4\n ret void",
            "@t = private unnamed_addr constant [5 x float] [float 1.0, float 2.0, float 3.0, "
            f"float 4.0, float 9.0], align {alignment}",
        )

    def tables(*alignments: int) -> CodeImage:
        made = [build("x86-64-v2", *body(a, "volatile")) for a in alignments]
        return link_image(made, target_of("x86-64-v2"))

    table = struct.pack("<5f", 1, 2, 3, 4, 9)
    for alignments in ((4, 64), (64, 4)):
        image = tables(*alignments)
        assert (image.constant_bytes_met, image.constant_bytes_kept) == (40, 20)
        assert image.data.count(table) == 1
        assert image.data.index(table) % 64 == 0
    assert tables(4).parts.constants[0].alignment == 4


def test_a_constant_inside_another_is_part_of_it() -> None:
    def table(values: str, count: int) -> bytes:
        return build(
            "x86-64-v2",
            f"%p = getelementptr [{count} x i32], ptr @t, i32 0, i32 %x\n"
            " %a = load i32, ptr %p\n store i32 %a, ptr %d\n ret void",
            f"@t = private unnamed_addr constant [{count} x i32] [{values}], align 4",
        )

    long = ", ".join(f"i32 {n}" for n in range(1, 10))
    short = ", ".join(f"i32 {n}" for n in range(4, 7))
    image = link_image([table(short, 3), table(long, 9)], target_of("x86-64-v2"))
    assert (image.constant_bytes_met, image.constant_bytes_kept) == (48, 36)
    short_part, long_part = image.parts.constants
    assert short_part.offset == long_part.offset + 12


# Linking again --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_that_is_linked_again_is_the_same(target: str) -> None:
    """So the parts say all there is to know."""
    described = target_of(target)
    made = [build(target, *two_stores(*v)) for v in ALIKE.values()]
    made += [build(target, BODIES[n]) for n in ("one", "store", "constants")]
    image = link_image(made, described)
    again = merge_images([(image.data, image.parts)], described.arch, described.page_bytes)
    assert again.data == image.data
    assert again.parts == image.parts


@pytest.mark.parametrize("target", TARGETS)
def test_merged_images_share_equal_functions_and_constants(target: str) -> None:
    described = target_of(target)
    objects = {
        **{k: build(target, *two_stores(*v)) for k, v in ALIKE.items()},
        **{n: build(target, BODIES[n]) for n in ("one", "store", "constants")},
    }
    a = link_image([objects[n] for n in ("1, then 2", "one", "constants")], described)
    b = link_image(
        [objects[n] for n in ("store", "2, then 1", "constants", "1, then 2")], described
    )
    merged = merge_images(
        [(a.data, a.parts), (b.data, b.parts)], described.arch, described.page_bytes
    )
    names = ("1, then 2", "one", "constants", "store", "2, then 1")
    # as if all had been objects of one model
    assert merged.data == link_image([objects[n] for n in names], described).data
    assert (merged.functions_met, merged.functions_kept) == (7, 5)
    sizes = [p.length for p in (*a.parts.functions, *b.parts.functions)]
    shared = a.parts.functions[0].length + a.parts.functions[2].length
    assert merged.function_bytes_met == sum(sizes)
    assert merged.function_bytes_kept == sum(sizes) - shared
    ends = [e & ~1 for e in merged.entries]
    assert ends[0] == ends[6] and ends[2] == ends[5] and len(set(ends)) == 5


def test_parts_that_do_not_fit_their_image_are_refused() -> None:
    inside = Part(0, 8, 16)
    for parts in (
        ImageParts((Part(4, 8, 16),), ()),
        ImageParts((Part(-1, 8, 16),), ()),
        ImageParts((inside,), (Part(8, 1, 4),)),
        ImageParts((Part(0, 8, 16, (Reference(6, 2, -1, 0),)),), ()),
        ImageParts((Part(0, 8, 16, (Reference(0, 2, 0, 0),)),), ()),
        ImageParts((Part(0, 8, 16, (Reference(0, 2, -2, 0),)),), ()),
    ):
        with pytest.raises(ValueError, match="is outside its image|leads outside its image"):
            merge_images([(bytes(8), parts)], "x86_64", 4096)
    for alignment in (0, 3, 1 << 40):
        with pytest.raises(ValueError, match=f"a part is aligned to {alignment} bytes"):
            merge_images([(bytes(8), ImageParts((Part(0, 8, alignment),), ()))], "x86_64", 4096)
    with pytest.raises(InternalError, match="relocation type 99 of x86_64 is not known"):
        parts = ImageParts((Part(0, 8, 16, (Reference(0, 99, -1, 0),)),), ())
        merge_images([(bytes(8), parts)], "x86_64", 4096)


def test_order_of_objects_decides_the_bytes_and_nothing_else() -> None:
    objects = [build("aarch64-generic", BODIES[n]) for n in ("both", "one", "store")]
    target = target_of("aarch64-generic")
    assert link_image(objects, target) == link_image(list(objects), target)
    assert link_image(objects, target).alignment == 16384
    assert link_image([], target).data == b""


@pytest.mark.parametrize("name", native_targets()[:1])
def test_linked_code_runs_at_any_place_in_the_image(name: str) -> None:
    """The same kernel first and last in an image gives the same results."""
    target = target_of(name)
    cases = [chain(16), tile(2, 16, 5, 16), chain(4), chain(16)]
    jobs: list[Job] = [make_job(c.make(), c.buffers, c.params, target) for c in cases]
    image = link_image([compile_kernel(j.kernel, target) for j in jobs], target)
    run_native(image, jobs)
    assert jobs[0].classes["outputs"] == jobs[3].classes["outputs"]
    assert image.functions_kept == 3


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["x86-64-v2", "aarch64-generic", "armv7-neon", "thumbv7em", "riscv64"]
)
def test_a_call_out_is_refused(target: str) -> None:
    made = build(
        target, "call void @memset(ptr %d, i32 0)\n ret void", "declare void @memset(ptr, i32)"
    )
    with pytest.raises(
        InternalError,
        match="made: 'memset' is not defined: generated code may "
        "call and use nothing outside its object",
    ):
        link_image([made], target_of(target))


def test_a_library_call_of_llvms_own_is_refused() -> None:
    made = build(
        "thumbv7em",
        "%a = load double, ptr %d\n %b = fmul double %a, %a\n store double %b, ptr %d\n ret void",
    )
    with pytest.raises(InternalError, match="made: '__aeabi_dmul' is not defined"):
        link_image([made], target_of("thumbv7em"))


def test_other_contents_are_refused() -> None:
    target = target_of("x86-64-v2")
    for body, more, message in (
        (
            "store i32 1, ptr @g\n ret void",
            "@g = internal global i32 5",
            r"made: section \.data is writable",
        ),
        (
            "store i32 1, ptr @g\n ret void",
            "@g = internal global i32 0",
            r"made: section \.bss is writable",
        ),
        (
            "store ptr @t, ptr %d\n ret void",
            "@t = internal constant [2 x ptr] [ptr @t, ptr @t]",
            r"made: section \.data\.rel\.ro is writable|made: constants in .* need relocation",
        ),
        (
            "call void @f()\n ret void",
            'define internal void @f() noinline section ".text.f" { ret void }',
            r"made: code outside the entry's section, in \.text\.f",
        ),
    ):
        with pytest.raises(InternalError, match=message):
            link_image([build("x86-64-v2", body, more)], target)


def test_the_entry_must_be_there() -> None:
    with pytest.raises(InternalError, match="made: object does not define function 'kernel'"):
        link_image([build("x86-64-v2", "ret void", name="colonel")], target_of("x86-64-v2"))


def test_another_machine_is_refused() -> None:
    with pytest.raises(
        InternalError, match="made: object is for aarch64, target x86-64-v2 needs x86_64"
    ):
        link_image([build("aarch64-generic", "ret void")], target_of("x86-64-v2"))
    with pytest.raises(InternalError, match="target vulkan-1.1: there is no linker for arch none"):
        link_image([], target_of("vulkan-1.1"))


def test_an_unknown_relocation_is_refused() -> None:
    made = bytearray(build("x86-64-v2", BODIES["constants"]))
    # The type is the low half of r_info: make R_X86_64_PC32 (2) an R_X86_64_GOTPCREL (9).
    record = struct.pack("<I", 2)
    places = [
        i
        for i in range(8, len(made) - 16, 8)
        if made[i : i + 4] == record and struct.unpack_from("<q", made, i + 8)[0] == -4
    ]
    assert len(places) == 1
    struct.pack_into("<I", made, places[0], 9)
    with pytest.raises(
        InternalError,
        match=r"made: relocation type 9 of x86_64 at 0x\w+ to "
        r"'\.LCPI0_0' is not known",
    ):
        link_image([bytes(made)], target_of("x86-64-v2"))


def test_broken_objects_are_refused() -> None:
    made = build("x86-64-v2", BODIES["constants"])
    target = target_of("x86-64-v2")
    with pytest.raises(InternalError, match="object is not a little-endian elf file"):
        link_image([b"MZ" + made[2:]], target)
    with pytest.raises(InternalError, match="object has elf type 2, expected a relocatable"):
        link_image([made[:16] + b"\2" + made[17:]], target)
    with pytest.raises(InternalError, match="object is for unknown elf machine 8"):
        link_image([made[:18] + b"\x08\0" + made[20:]], target)
    for length in range(0, len(made), 7):
        with pytest.raises(InternalError):
            link_image([made[:length]], target)


# Relocations by themselves: the encodings' own numbers --------------------------------------------


def applied(kind: Kind, code: bytes, place: int, target: int) -> bytes:
    image = bytearray(place) + bytearray(code)
    kind.apply(image, place, target)
    return bytes(image[place:])


@pytest.mark.parametrize(
    ("kind", "before", "place", "target", "after"),
    [
        # movups xmm0, [rip + ?]: the distance counts from the place; the addend held the -4.
        (X86_64[2], "00000000", 16, 0x110 - 4, "fc000000"),
        (X86_64[2], "00000000", 0x200, 0x100, "00ffffff"),
        # adrp x0, page 2 from page 0; adrp x3, page -1.
        (AARCH64[275], "00000090", 0x10, 0x2ABC, "000000d0"),
        (AARCH64[275], "03000090", 0x1010, 0xFFF, "e3fffff0"),
        # ldr q0, [x0, #0xab0]; add x0, x0, #0xabc
        (AARCH64[299], "0000c03d", 0x10, 0x2AB0, "00acc23d"),
        (AARCH64[277], "00000091", 0x10, 0x2ABC, "00f02a91"),
        (AARCH64[283], "00000094", 0x10, 0x20, "04000094"),
        # auipc a0: the low part is signed, so 0x1800 rounds up to 2 pages.
        (RISCV[23], "17050000", 0, 0x1800, "17250000"),
        (RISCV[23], "17050000", 0, 0x17FF, "17150000"),
        # flw fa0, ?(a0) and fsw fa0, ?(a0), given the distance from the partner.
        (RISCV[24], "07250500", 0, 0x1804, "07254580"),
        (RISCV[25], "2720a500", 0, 0x1804, "2722a580"),
        (ARM[3], "00000000", 0x20, 0x10, "f0ffffff"),
        # bl -> 8 bytes on (the addend held the pipeline's -8).
        (ARM[28], "feffffeb", 0x10, 0x18 - 8, "000000eb"),
        # movw r0, movt r0
        (ARM[45], "000000e3", 0, 0x1234, "340201e3"),
        (ARM[46], "000040e3", 0, 0x12345678, "340241e3"),
        (ARM[49], "40f20000", 0, 0x1234, "41f23420"),
        (ARM[50], "c0f20000", 0, 0x12345678, "c1f23420"),
        # bl in Thumb: 0x100 - 4 on, and backwards
        (ARM[10], "fff7feff", 0, 0x100 - 4, "00f07ef8"),
        (ARM[10], "fff7feff", 0x100, 0 - 4, "fff77eff"),
    ],
)
def test_encodings(kind: Kind, before: str, place: int, target: int, after: str) -> None:
    assert applied(kind, bytes.fromhex(before), place, target).hex() == after


def test_addends_read_back_what_was_written() -> None:
    for kind, code, values in (
        (ARM[3], "00000000", (0, 5, -7, 2**31 - 1)),
        (ARM[28], "000000eb", (0, 4, -8, 2**25 - 4, -(2**25))),
        (ARM[10], "00f000f8", (0, 2, -4, 2**24 - 2, -(2**24))),
        (ARM[45], "000000e3", (0, 1, 0x7FFF, -1, -0x8000)),
        (ARM[49], "40f20000", (0, 1, 0x7FFF, -1, -0x8000)),
    ):
        assert kind.addend is not None
        for value in values:
            written = applied(kind, bytes.fromhex(code), 0, value)
            assert kind.addend(written, 0) == value


def test_distances_out_of_reach_are_refused() -> None:
    for kind, target in (
        (X86_64[2], 2**31 + 100),
        (AARCH64[283], 2**28),
        (AARCH64[283], 6),
        (ARM[28], 2**26),
        (ARM[10], 2**25),
        (RISCV[23], 2**32),
        (AARCH64[299], 0x2AB8),
    ):
        with pytest.raises(InternalError):
            applied(kind, bytes(8), 0, target)
