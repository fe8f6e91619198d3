"""Target files load as written, and every wrong one is refused with file, line, key and rule."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from itertools import combinations
from pathlib import Path

import pytest

import aot
from aot.errors import CompileError
from aot.ir.types import DType
from aot.link.image import Arch
from aot.target import host_cpu
from aot.target import selection as targets
from aot.target.model import GpuGeometry, Target, VulkanLimits, describe
from aot.target.selection import load
from aot.target.toml import check_names, parse
from tests.support.paths import ROOT

GOOD = (targets.directory() / "x86-64-v3.toml").read_text()
RISCV32 = """
summary = "32-bit RISC-V with single precision"
device = "cpu"
arch = "riscv32"
triple = "riscv32-unknown-elf"
cpu = "generic-rv32"
abi = "ilp32f"
features = ["m", "a", "f", "c"]
options = ["-relax"]
vector_bytes = 4
vector_registers = 32
l1_bytes = 16384
l2_bytes = 65536
page_bytes = 64
word_bytes = 4
dtypes = ["f32", "i8", "i16", "i32", "u8", "u16", "u32", "bool"]
"""
MODEL = """
func @main(%x: f32[N, 8]) -> ("y") {
  %1 = tanh(%x) : f32[N, 8]
  %2 = add(%1, %x) : f32[N, 8]
  return(%2)
}
"""
GPU = (targets.directory() / "vulkan-1.1.toml").read_text()


CPU_NAMES = tuple(name for name in targets.names() if load(name).is_cpu)


def test_names() -> None:
    assert {"x86-64-v3", "aarch64-generic", "thumbv7em", "wasm32"} <= set(CPU_NAMES)
    assert "vulkan-1.1" in targets.names()
    assert list(targets.names()) == sorted(targets.names())


@pytest.mark.parametrize("name", targets.names())
def test_every_file_loads(name: str) -> None:
    target = load(name)
    assert target.name == name
    assert target.summary and not target.summary.endswith(".")
    assert target.arch.upper() in Arch.__members__
    assert target.panel == 16, "all targets of a module share packed panels"
    assert (target.gpu is None) == target.is_cpu
    assert (target.vulkan is not None) == (target.device == "vulkan")
    if target.is_cpu:
        assert target.page_bytes % 64 == 0
        assert DType.I64 in target.dtypes or target.word_bytes == 4


@pytest.mark.parametrize("name", CPU_NAMES)
def test_llvm_knows_every_name(name: str) -> None:
    check_names(load(name))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"popcnt",',
            '"popcnt", "warp-drive",',
            "features: llvm says: '+warp-drive' is not a recognized feature for this target",
        ),
        (
            'cpu = "x86-64"',
            'cpu = "z80"',
            "cpu: llvm says: 'z80' is not a recognized processor for this target",
        ),
        (
            'tune = "x86-64-v3"',
            'tune = "x86-64-v9"',
            "tune: llvm says: 'x86-64-v9' is not a recognized processor for this target",
        ),
        (
            'tune = "x86-64-v3"',
            'options = ["-warp"]',
            "options: llvm says: '-warp' is not a recognized feature for this target",
        ),
        (
            'triple = "x86_64-unknown',
            'triple = "x86_64x-unknown',
            "triple: llvm says: 'x86_64x-unknown-linux-gnu' is not a triple of an instruction set "
            "in this llvm",
        ),
    ],
)
def test_names_that_llvm_does_not_know(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    file = tmp_path / "x.toml"
    file.write_text(GOOD.replace(old, new))
    key = message.partition(":")[0]
    expected = f"{file}:{line_of(file.read_text(), key)}: {message}"
    with pytest.raises(CompileError) as caught:
        check_names(load(file))
    assert str(caught.value) == expected
    (tmp_path / "m.ir").write_text(MODEL)
    with pytest.raises(CompileError) as caught:
        aot.compile(tmp_path / "m.ir", targets=[str(file)], cache_dir=tmp_path / "cache")
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "old", "cpu", "implied"),
    [
        ("x86-64-v2", "x86-64", "haswell", "avx, avx2, f16c, fma, bmi, lzcnt"),
        ("aarch64-generic", "generic", "cortex-a510", "fullfp16, dotprod, i8mm, sve"),
        ("riscv64", "generic-rv64", "sifive-x280", "v, zbb, zfh"),
    ],
)
def test_a_cpu_with_more_features_than_are_listed(
    tmp_path: Path, name: str, old: str, cpu: str, implied: str
) -> None:
    """Its code would run into an instruction that the machine lacks, and the loader let it."""
    file = tmp_path / "x.toml"
    text = (targets.directory() / f"{name}.toml").read_text()
    file.write_text(text.replace(f'cpu = "{old}"', f'cpu = "{cpu}"'))
    with pytest.raises(CompileError) as caught:
        check_names(load(file))
    assert str(caught.value) == (
        f"{file}:{line_of(file.read_text(), 'cpu')}: cpu: '{cpu}' has features that are not in "
        f"`features`, which the loader would not look for: {implied}; list them, or name a cpu "
        "without them"
    )


def test_features_may_imply_others(tmp_path: Path) -> None:
    """What listed features bring along is on each machine that has them."""
    file = tmp_path / "x.toml"
    text = (targets.directory() / "x86-64-v2.toml").read_text()
    file.write_text(text.replace('"popcnt", ', '"popcnt", "avx2", '))
    check_names(load(file))
    file.write_text(text.replace('cpu = "x86-64"', 'cpu = "nehalem"'))
    check_names(load(file))


def test_names_that_llvm_does_not_take_together(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    text = (targets.directory() / "riscv64.toml").read_text()
    file.write_text(text.replace('"generic-rv64"', '"generic-rv32"'))
    with pytest.raises(CompileError) as caught:
        check_names(load(file))
    assert str(caught.value) == (
        f"{file}: llvm refuses this combination of triple, cpu and features: LLVM ERROR: RV64 "
        "target requires an RV64 CPU"
    )
    check_names(load("vulkan-1.1"))  # LLVM has no part in it


def test_a_file_of_one_s_own_gives_a_module(tmp_path: Path) -> None:
    """For an architecture that no target of ours has, by its file alone."""
    file = tmp_path / "esp.toml"
    file.write_text(RISCV32)
    (tmp_path / "m.ir").write_text(MODEL)
    module = aot.compile(tmp_path / "m.ir", targets=[str(file)])
    (variant,) = module.image.variants
    assert (variant.target, variant.arch, variant.word_bytes) == ("esp", Arch.RISCV32, 4)
    assert variant.features == ("m", "a", "f", "c")
    again = aot.compile(tmp_path / "m.ir", targets=[str(file)], cache=False)
    assert again.to_bytes() == module.to_bytes()


def test_describe_says_every_key_and_what_it_means() -> None:
    for name in ("x86-64-v4", "vulkan-1.1"):
        rows = {key: (value, meaning) for key, value, meaning in describe(load(name))}
        parts: list[type] = [GpuGeometry, VulkanLimits] if name == "vulkan-1.1" else []
        keys = {f.name for r in (Target, *parts) for f in fields(r)}
        keys -= {"name", "file", "gpu", "vulkan"}
        assert set(rows) == keys
        assert all(meaning for _, meaning in rows.values())
    assert rows["lanes"] == (64, "workgroup size that schedules aim at.")
    assert rows["max_stack_bytes"][1].startswith("REGISTER scratch that a kernel may put on the")


def test_values() -> None:
    target = load("x86-64-v4")
    assert (target.vector_bytes, target.vector_registers, target.word_bytes) == (64, 32, 8)
    assert target.has("avx512f") and not target.has("avx512fp16")
    assert target.lanes(DType.F32) == 16 and target.lanes(DType.INDEX) == 8
    assert load("armv7-neon").lanes(DType.INDEX) == 4
    assert load("thumbv7em").lanes(DType.F32) == 1
    assert not load("armv7-neon").computes(DType.I64)
    assert not load("vulkan-1.1").computes(DType.F64)
    assert load("vulkan-1.1").computes(DType.INDEX)
    assert hash(target) == hash(load("x86-64-v4"))


def test_a_path_works_too(tmp_path: Path) -> None:
    file = tmp_path / "my-board.toml"
    file.write_text(GOOD)
    target = load(file)
    assert target.name == "my-board"
    assert load(str(file)) == target
    assert target.file == str(file) and not load("x86-64-v3").file
    assert target.features == load("x86-64-v3").features


def test_host_is_one_of_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = set(load("x86-64-v3").features)
    monkeypatch.setattr(host_cpu, "features", lambda: frozenset(found))
    assert load("host") == load("x86-64-v3")
    found.update(load("x86-64-v4").features)
    assert load("host") == load("x86-64-v4")
    found.clear()
    with pytest.raises(
        CompileError,
        match="this machine is below target x86-64-v2, the least for x86_64: it lacks popcnt, sse3",
    ):
        load("host")
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    with pytest.raises(CompileError, match=r"no target is known for this machine \(s390x\)"):
        load("host")


def test_the_host_s_choices_are_targets_best_first() -> None:
    machines = {load(name).arch for name in CPU_NAMES}
    made = [targets.host_choices(m, s) for m in sorted(machines) for s in ("linux", "darwin")]
    assert sum(map(bool, made)) == 8  # x86-64, aarch64, arm and riscv64 on either system
    for found in made:
        for better, worse in combinations(found, 2):
            assert not set(better.features) <= set(worse.features)


def test_the_host_s_choices() -> None:
    """Stated here once more: a file that lost its key would change what `host` means."""
    assert [t.name for t in targets.host_choices("x86_64", "linux")] == [
        *("x86-64-v4-bf16", "x86-64-v4-vnni", "x86-64-v4", "x86-64-v3-vnni"),
        *("x86-64-v3", "x86-64-v2"),
    ]
    arm = ["aarch64-linux-i8mm", "aarch64-linux-dotprod", "aarch64-generic"]
    assert [t.name for t in targets.host_choices("aarch64", "linux")] == arm
    mac = ["aarch64-apple", "aarch64-generic"]
    assert [t.name for t in targets.host_choices("aarch64", "darwin")] == mac


def test_aliases() -> None:
    assert load("cortex-m4") == load("thumbv7em")
    named = [alias for name in targets.names() for alias in load(name).aliases]
    assert len(named) == len({*named})
    assert not {*named} & {"host", *targets.names()}
    both = targets.load_together(["thumbv7em", "cortex-m4"])
    assert [t.name for t in both] == ["thumbv7em"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('host = "plan9"', "host is 'plan9', expected one of any, linux, darwin"),
        ('aliases = ["a b"]', "aliases is ['a b'], expected a list of names"),
        ('aliases = ["a", "a"]', "aliases names something twice"),
    ],
)
def test_wrong_names_of_a_target(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "x.toml"
    assert 'host = "any"\n' in GOOD
    key = line.split(" ")[0]
    lines = (given for given in GOOD.splitlines() if not given.startswith(key))
    file.write_text("\n".join(lines).replace("arch = ", f"{line}\narch = "))
    with pytest.raises(CompileError) as caught:
        load(file)
    assert str(caught.value) == f"{file}:{line_of(file.read_text(), key)}: {message}"


def test_a_mac_is_a_target_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(host_cpu, "read_cpuinfo", lambda: "")
    assert load("host").name == "aarch64-apple"


# As Linux shows them, cut to what is read. Of big and little cores the least counts.
V4 = (
    "fpu sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c abm bmi1 avx2 bmi2 avx512f "
    "avx512dq avx512cd avx512bw avx512vl lahf_lm"
)
ARM64 = "fp asimd aes pmull crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc"


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "name"),
    [
        ("x86_64", f"processor\t: 0\nflags\t\t: {V4}\n\nflags\t\t: {V4}\n", "x86-64-v4"),
        ("x86_64", f"flags\t\t: {V4.replace('avx512vl', '')}\n", "x86-64-v3"),
        ("x86_64", f"flags\t\t: {V4} avx512_vnni avx512vbmi\n", "x86-64-v4-vnni"),
        ("x86_64", f"flags\t: {V4} avx512_vnni avx512vbmi avx512_bf16\n", "x86-64-v4-bf16"),
        ("x86_64", f"flags\t\t: {V4.replace('avx512', '')} avx_vnni\n", "x86-64-v3-vnni"),
        ("AMD64", "flags\t\t: pni ssse3 sse4_1 sse4_2 popcnt\n", "x86-64-v2"),
        ("aarch64", f"Features\t: {ARM64} asimddp\n" * 2, "aarch64-linux-dotprod"),
        ("aarch64", f"Features\t: {ARM64} asimddp i8mm bf16\n" * 2, "aarch64-linux-i8mm"),
        ("aarch64", f"Features\t: {ARM64} asimddp\nFeatures\t: {ARM64}\n", "aarch64-generic"),
        ("armv7l", "Features\t: half thumb neon vfpv3 tls vfpv4 idiva\n", "armv7-neon"),
        ("armv8l", "Features\t: half thumb neon vfp vfpv3 vfpv4\n", "armv7-neon"),
        ("riscv64", "isa\t\t: rv64imafdc_zicntr_zihpm\nmmu\t: sv39\n", "riscv64"),
        ("riscv64", "isa\t\t: rv64imafdcv_zicntr_zba\n", "riscv64-v"),
        ("riscv64", "isa\t\t: rv64gcv\nisa\t\t: rv64gc\n", "riscv64"),
    ],
)
def test_the_host_is_read_from_what_linux_says(
    monkeypatch: pytest.MonkeyPatch, machine: str, cpuinfo: str, name: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(host_cpu, "read_cpuinfo", lambda: cpuinfo)
    monkeypatch.setattr(host_cpu, "_features_by_llvm", lambda: pytest.fail("llvm is asked"))
    assert load("host").name == name


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "name"),
    [
        # boards whose kernel has 64 bits and whose programs have 32
        ("aarch64", f"Features\t: {ARM64}\n", "armv7-neon"),
        ("aarch64", "Features\t: half thumb neon vfp vfpv3 vfpv4\n", "armv7-neon"),
        ("x86_64", f"flags\t\t: {V4}\n", None),
    ],
)
def test_a_process_of_32_bits(
    monkeypatch: pytest.MonkeyPatch, machine: str, cpuinfo: str, name: str | None
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.maxsize", (1 << 31) - 1)
    monkeypatch.setattr(host_cpu, "read_cpuinfo", lambda: cpuinfo)
    if name is not None:
        assert load("host").name == name
        return
    with pytest.raises(CompileError, match=r"no target is known for this machine \(i386\)"):
        load("host")


def test_what_this_system_says_is_what_llvm_finds() -> None:
    told = host_cpu.features()
    found = host_cpu._features_by_llvm()
    choices = targets.host_choices(host_cpu.machine(), sys.platform)
    wanted = {f for target in choices for f in target.features}
    assert told & wanted == found & wanted


def test_unknown_name() -> None:
    with pytest.raises(CompileError, match="unknown target 'x86': did you mean x86-64-v2 or"):
        load("x86")


def test_unreadable_files(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    with pytest.raises(
        CompileError,
        match=re.escape(f"cannot read target file {missing}: No such file or directory"),
    ):
        load(missing)
    missing.write_bytes(b"\xff\xfe")
    with pytest.raises(CompileError, match="a target file must be utf-8"):
        load(missing)


def line_of(text: str, start: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.startswith(start))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'device = "cpu"',
            'device = "tpu"',
            "x.toml:LINE: device is 'tpu', expected one of cpu, vulkan",
        ),
        ('device = "cpu"', "", "x.toml: device is missing: expected one of cpu, vulkan"),
        (
            'arch = "x86_64"',
            'arch = "x86"',
            "x.toml:LINE: arch is 'x86', expected one of x86_64, aa",
        ),
        (
            'arch = "x86_64"',
            "",
            "x.toml: key 'arch' is missing: a cpu target needs summary, device",
        ),
        (
            "vector_bytes = 32",
            "vector_bytes = 24",
            "x.toml:LINE: vector_bytes is 24, expected a power of two from 1 to 256",
        ),
        (
            "vector_bytes = 32",
            "vector_bytes = 32.0",
            "x.toml:LINE: vector_bytes is 32.0, expected a power of two from 1 to 256",
        ),
        (
            "vector_bytes = 32",
            "vector_bytes = true",
            "x.toml:LINE: vector_bytes is True, expected a power of two from 1 to 256",
        ),
        (
            "l1_bytes = 32768",
            "l1_bytes = 0",
            "x.toml:LINE: l1_bytes is 0, expected an integer from 1024 to 1073741824",
        ),
        ("word_bytes = 8", "word_bytes = 6", "x.toml:LINE: word_bytes is 6, expected 4 or 8"),
        (
            "word_bytes = 8",
            "word_bytes = 4",
            "x.toml:LINE: word_bytes is 4, but arch x86_64 has words of 8 bytes",
        ),
        (
            "word_bytes = 8",
            "wordbytes = 8",
            "x.toml:LINE: unknown key 'wordbytes': a cpu target has summary, device",
        ),
        (
            "word_bytes = 8",
            "[vulkan]\nlanes = 2",
            "x.toml:LINE: unknown key 'vulkan': a cpu target",
        ),
        ("word_bytes = 8", "[gpu]\nlanes = 2", "x.toml:LINE: unknown key 'gpu': a cpu target"),
        ("dtypes = [", 'dtypes = ["f80", ', "x.toml:LINE: dtypes is ['f80', 'f32', "),
        ("dtypes = [", 'dtypes = ["f32", ', "x.toml:LINE: dtypes names something twice"),
        ('dtypes = ["f32", ', "dtypes = [", "x.toml:LINE: dtypes lacks f32, which every target"),
        ("features = [", 'features = ["+x", ', "x.toml:LINE: features is ['+x', 'popcnt'"),
        ("features = [", 'features = ["avx", ', "x.toml:LINE: features names something twice"),
        (
            'triple = "x86_64-unknown',
            'triple = "arm64-unknown',
            "x.toml:LINE: triple is 'arm64-unknown-linux-gnu', but arch is x86_64: expected one "
            "that begins with x86_64",
        ),
        ('cpu = "x86-64"', "cpu = 5", "x.toml:LINE: cpu is 5, expected one line of text"),
        (
            'summary = "',
            'summary = ""  # ',
            "x.toml:LINE: summary is '', expected one line of text",
        ),
        (
            'cpu = "x86-64"',
            "cpu = ",
            "x.toml: not valid toml: invalid value (at line LINE, column 7)",
        ),
    ],
)
def test_a_wrong_cpu_file(old: str, new: str, message: str) -> None:
    check_refused(GOOD, old, new, message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "lanes = 64",
            "lanes = 256",
            "x.toml:LINE: lanes is 256, above max_workgroup_invocations (128)",
        ),
        (
            "lanes = 64",
            "",
            "x.toml: key 'lanes' is missing: the table [gpu] needs lanes, max_workgroup",
        ),
        (
            "lanes = 64",
            "lanes = 64\nwarp = 32",
            "x.toml:LINE: unknown key 'warp': the table [gpu] has lanes",
        ),
        (
            "max_workgroup_size = [128, 128, 64]",
            "max_workgroup_size = [128, 128]",
            "x.toml:LINE: max_workgroup_size is [128, 128], expected three integers above 0",
        ),
        (
            "max_storage_buffers = 4",
            "max_storage_buffers = 3",
            "x.toml:LINE: max_storage_buffers is 3, expected an integer from 4 to 1048576",
        ),
        (
            "word_bytes = 4",
            'word_bytes = 4\ntriple = "spirv"',
            "x.toml:LINE: unknown key 'triple': a vulkan target has summary",
        ),
        (
            "lanes = 64",
            "lanes = 64\nstorage_bits = [16, 32]",
            "x.toml:LINE: storage_bits is [16, 32], expected a list of 8, 16",
        ),
        (
            "lanes = 64",
            'lanes = 64\nsubgroup_lanes = 8\nmatrices = ["8x8 f16*f16+f32"]',
            "x.toml:LINE: matrices is ['8x8 f16*f16+f32'], expected a list of texts "
            "'ROWSxCOLUMNSxTERMS TYPE*TYPE+TYPE'",
        ),
        (
            "lanes = 64",
            'lanes = 64\nmatrices = ["8x8x8 f16*f16+f32"]',
            "x.toml:LINE: matrices needs subgroup_lanes",
        ),
        (
            "lanes = 64",
            'lanes = 64\nsubgroup_lanes = 8\nmatrices = ["8x8x8 f16*f16+f32"]',
            "x.toml:LINE: matrices has f16, which dtypes lacks",
        ),
        (
            "lanes = 64",
            "lanes = 64\nsubgroup_lanes = 128",
            "x.toml:LINE: subgroup_lanes is 128, above lanes (64)",
        ),
        (
            'dtypes = ["f32"',
            'dtypes = ["f64", "f32"',
            "x.toml:LINE: dtypes has f64, expected of f32, f16, i8, i16, i32, u8, u16, u32, bool",
        ),
        (
            "texel_buffers = true",
            "texel_buffers = 1",
            "x.toml:LINE: texel_buffers is 1, expected true or false",
        ),
    ],
)
def test_a_wrong_vulkan_file(old: str, new: str, message: str) -> None:
    check_refused(GPU, old, new, message)


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        (
            "[vulkan]",
            "[vulkan]\nlanes = 64",
            17,
            "unknown key 'lanes': the table [vulkan] has max_storage_buffers, "
            "max_push_constant_bytes, max_storage_buffer_bytes, min_storage_alignment_bytes, "
            "texel_buffers",
        ),
        (
            "[gpu]",
            "[gpu]\nsummary = 5",
            9,
            "unknown key 'summary': the table [gpu] has lanes, max_workgroup_invocations, "
            "max_workgroup_size, max_workgroup_count, max_shared_bytes, max_lane_iterations, "
            "subgroup_operations, storage_bits",
        ),
        ("[vulkan]", "[[vulkan]]", 16, "vulkan is [{"),
        ("[gpu]", "gpu = 3\n[vulkan.gpu]", 8, "gpu is 3, expected a table"),
        ("lanes = 64", "lanes = 3", 9, "lanes is 3, expected a power of two from 1 to 1024"),
    ],
)
def test_a_wrong_key_of_a_table_is_found_where_it_stands(
    old: str, new: str, place: int, message: str
) -> None:
    """A key of the same name in another table is not what the message is about."""
    with pytest.raises(CompileError) as caught:
        parse(GPU.replace(old, new, 1), "x.toml", "x")
    assert str(caught.value).startswith(f"x.toml:{place}: {message}")


def check_refused(good: str, old: str, new: str, message: str) -> None:
    assert old in good
    text = good.replace(old, new, 1)
    with pytest.raises(CompileError) as caught:
        parse(text, "x.toml", "x")
    if "LINE" in message:
        changed = (
            new.splitlines()[-1]
            if new.startswith(("lanes", "word_bytes = 4\n"))
            else (new.splitlines()[0])
        )
        message = message.replace("LINE", str(line_of(text, changed)))
    assert str(caught.value).startswith(message)


def test_every_field_is_documented() -> None:
    for record in (Target, GpuGeometry, VulkanLimits):
        described = re.findall(r"^        (\w+):", record.__doc__ or "", re.MULTILINE)
        assert described == [f.name for f in fields(record)] or (
            set(described) == {f.name for f in fields(record)}
        )


def test_the_guide_names_every_key() -> None:
    guide = (ROOT / "docs" / "internals" / "add-a-target.md").read_text()
    keys = {f.name for r in (Target, GpuGeometry, VulkanLimits) for f in fields(r)}
    assert not sorted(k for k in keys - {"name", "file"} if f"`{k}`" not in guide)
