"""`aotc inspect --fusion`: each rule that keeps ops apart, said of a model that meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import aot
from aot.cli import main as cli
from aot.frontends.text import import_text
from aot.passes.base import PassContext, run_passes
from aot.passes.fusion.fuse import FUSE
from aot.passes.fusion.join_regions import JOIN_REGIONS
from aot.passes.fusion.region_report import regions_of
from aot.passes.fusion.remarks import FusionRemarks
from aot.target import selection as targets
from aot.tools.explain_fusion import explain_fusion, format_fusion
from tests.support.golden import check

TARGET = "x86-64-v3"
# too much for one workgroup; and sums along the first dim share none with what they sum
LARGE, SUMS = "f32[2000, 3000]", "f32[3000]"
SUM = "reduce_sum(%a) {axes = [0], keepdims = false}"


def report(body: str, inputs: str = f"%x: {LARGE}", results: str = "%y", **options: Any) -> Any:
    """The regions of a function."""
    names = ", ".join(f'"r{n}"' for n in range(results.count("%")))
    lines = "".join(f"  {line.strip()}\n" for line in body.strip().splitlines())
    text = f"func @main({inputs}) -> ({names}) {{\n{lines}  return({results})\n}}\n"
    facts = explain_fusion(import_text(text), targets=(TARGET,), **options)
    (variant,) = facts["variants"]
    (function,) = variant["entry_points"]
    return function["regions"]


def why(regions: Any) -> list[str]:
    """The reasons of the only value that goes from one region to another."""
    ((reads,),) = [r["reads"] for r in regions if r["reads"]]
    found: list[str] = reads["why"]
    return found[:-1]


def test_a_region_says_what_it_is() -> None:
    regions = report(
        f"""
        %c = constant {{value = f32[] <2.0>}} : f32[] @"two"
        %b = mul(%x, %c) : {LARGE} @"scale"
        %a = exp(%b) : {LARGE} @"exp"
        %y = {SUM} : {SUMS} @"sum"
        """
    )
    assert regions == [
        {
            "number": 0,
            "roots": [{"op": "mul", "node": "scale"}],
            "ops": [{"op": "mul", "node": "scale"}, {"op": "exp", "node": "exp"}],
            "weighed": [],
            "bytes_in": 24_000_000,
            "bytes_constant": 4,
            "bytes_out": 24_000_000,
            "reads": [],
        },
        {
            "number": 1,
            "roots": [{"op": "reduce_sum", "node": "sum"}],
            "ops": [{"op": "reduce_sum", "node": "sum"}],
            "weighed": [],
            "bytes_in": 24_000_000,
            "bytes_constant": 0,
            "bytes_out": 12_000,
            "reads": [
                {
                    "region": 0,
                    "type": LARGE,
                    "bytes": 24_000_000,
                    "why": [
                        "reduce_sum is not elementwise",
                        "it is not cheap enough to be computed in the loads of reduce_sum",
                        "as stages: one workgroup would process 18,003,000 elements, the most for "
                        "one is 262,144",
                    ],
                }
            ],
        },
    ]


SCAN = "scan(%a) {axis = 1}"
POOL = "kernel = [3, 3], strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]"
IMAGE = "f32[1, 64, 200, 200]"


@pytest.mark.parametrize(
    ("body", "results", "expected"),
    [
        (  # another user; a sum is cheap to compute twice, and still it is not
            f"""
            %a = relu(%x) : {LARGE}
            %y = {SUM} : {SUMS}
            """,
            "%a, %y",
            ["reduce_sum is not elementwise", "it is a result too, and nothing is computed twice"],
        ),
        (  # a kernel that is written by hand neither ends in users nor computes what it loads
            f"""
            %a = scan(%x) {{axis = 1}} : {LARGE}
            %y = exp(%a) : {LARGE}
            """,
            "%y",
            [
                "kernels of scan are written by hand and store what they make",
                "scan has loops of its own, which no load can hold",
            ],
        ),
        (
            f"""
            %a = exp(%x) : {LARGE}
            %y = {SCAN} : {LARGE}
            """,
            "%y",
            [
                "scan is not elementwise",
                "kernels of scan are written by hand and load what is in memory",
            ],
        ),
        (
            f"""
            %a = exp(%x) : {LARGE}
            %b = reshape(%a) {{shape = [3000, 2000]}} : f32[3000, 2000]
            %y = reduce_sum(%b) {{axes = [0], keepdims = false}} : f32[2000]
            """,
            "%y",
            ["reshape is a view of memory"],
        ),
        (
            f"""
            %a = exp(%x) : {LARGE}
            %y = gather(%a, %i) {{axis = 0}} : f32[5000, 3000]
            """,
            "%y",
            [
                "gather is not elementwise",
                "gather loads an element more than once, or under a condition",
            ],
        ),
        (
            f"""
            %a = relu(%image) : {IMAGE}
            %y = max_pool(%a) {{{POOL}}} : {IMAGE}
            """,
            "%y",
            [
                "max_pool is not elementwise",
                "windows of max_pool overlap, so it would be computed more than once",
            ],
        ),
        (
            """
            %a = exp(%left) : f32[700, 500]
            %y = matmul(%a, %right) : f32[700, 900]
            """,
            "%y",
            [
                "matmul is not elementwise",
                "matmul loads each element many times, so it must be a mere renaming",
            ],
        ),
        (
            """
            %a = transpose(%turned) {perm = [1, 0]} : f32[500, 900]
            %y = matmul(%left, %a) : f32[700, 900]
            """,
            "%y",
            [
                "matmul is not elementwise",
                "matmul reads it in lanes along its innermost dim, which must stay in place",
            ],
        ),
    ],
)
def test_why_two_regions_stay_apart(body: str, results: str, expected: list[str]) -> None:
    inputs = {
        "x": LARGE,
        "i": "i64[5000]",
        "image": IMAGE,
        "left": "f32[700, 500]",
        "right": "f32[500, 900]",
        "turned": "f32[900, 500]",
    }
    text = ", ".join(f"%{name}: {type}" for name, type in inputs.items())
    assert why(report(body, text, results)) == expected


def chain(ops: int, *, more: bool) -> str:
    """`ops` additions one after another, of inputs of their own where `more`."""
    lines = []
    for n in range(ops):
        before = f"%a{n - 1}" if n else "%x"
        lines.append(f"%a{n} = {'add' if more else 'exp'}({before}{f', %i{n}' * more}) : {LARGE}")
    return "\n".join(lines)


def test_limits_of_a_region() -> None:
    inputs = ", ".join(["%x: " + LARGE, *(f"%i{n}: {LARGE}" for n in range(18))])
    assert why(report(chain(18, more=True), inputs, "%a17")) == [
        "with add it would read more than 14 values",
        "together they would read more than 14 values",
    ]
    # too many ops for `fuse`; as stages of one region they follow each other
    (region,) = report(chain(60, more=False), results="%a59")
    assert len(region["ops"]) == 60 and len(region["roots"]) == 2


def test_why_regions_are_not_stages_of_one() -> None:
    body = f"""
        %a = exp(%x) : {LARGE}
        %y = {SUM} : {SUMS}
        %z = neg(%a) : {LARGE}
        """
    _, sums, neg = report(body, results="%y, %z")
    found = [region["reads"][0]["why"][-1] for region in (sums, neg)]
    assert found[0].startswith("as stages: one workgroup would process ")
    assert found[1] == "as stages: something between them needs the first one"
    scan = report(f"%a = exp(%x) : {LARGE}\n%y = {SCAN} : {LARGE}")
    stages = "as stages: kernels that are written by hand have no stages"
    assert scan[1]["reads"][0]["why"][-1] == stages


def test_several_values_that_would_leave() -> None:
    body = f"""
        %a = exp(%x) : {LARGE}
        %b = neg(%a) : {LARGE}
        %c = tanh(%a) : {LARGE}
        %d = {SUM.replace("%a", "%b")} : {SUMS}
        %e = {SUM.replace("%a", "%c")} : {SUMS}
        """
    regions = report(body, results="%d, %e")
    reasons = {reason for region in regions for read in region["reads"] for reason in read["why"]}
    assert "several values would leave it; reduce_sum is not elementwise" in reasons


def formed(text: str) -> list[dict[str, Any]]:
    """The regions of what no pass but those that form them has seen."""
    module = import_text(text)
    context = PassContext(target=targets.load(TARGET), remarks=FusionRemarks())
    run_passes(module, [FUSE, JOIN_REGIONS], context)
    return regions_of(module.main, context)


def test_no_region_crosses_the_border_of_a_branch() -> None:
    _, inner = formed(f"""
        func @main(%t: bool[], %x: {LARGE}) -> ("y") {{
          %a = exp(%x) : {LARGE}
          %y = if(%t) : {LARGE} ^() {{
            %b = neg(%a) : {LARGE}
            yield(%b)
          }} ^() {{
            yield(%a)
          }}
          return(%y)
        }}
        """)
    assert [read["why"] for read in inner["reads"]] == [
        ["they are in different blocks of control flow"]
    ]


def test_no_read_moves_behind_a_write() -> None:
    """%a and %b read the state as it was; %c is after it was written."""
    regions = formed("""
        func @main(%x: f32[4]) -> ("y") {
          %s = state {variable = "s", dtype = f32, shape = [4]} : f32[4]
          %a = neg(%s) : f32[4]
          %b = exp(%a) : f32[4]
          %after = assign(%s, %x) : f32[4]
          %c = mul(%b, %x) : f32[4]
          return(%c)
        }
        """)
    assert [read["why"] for region in regions for read in region["reads"]] == [
        [
            "its operand is written before mul",
            "its operand is written in between",
            "as stages: what the first one reads is written in between",
        ]
    ]


def test_without_fusion_each_op_is_a_region() -> None:
    regions = report(f"%a = exp(%x) : {LARGE}\n%y = neg(%a) : {LARGE}", disable=["fusion"])
    assert [len(region["ops"]) for region in regions] == [1, 1]
    assert regions[1]["reads"][0]["why"] == ["fusion is off"]


def test_sizes_of_open_shapes_are_dims() -> None:
    regions = report("%y = exp(%x) : f32[N, 4]", "%x: f32[N, 4]")
    assert (regions[0]["bytes_in"], regions[0]["bytes_out"]) == ("16*N", "16*N")


# Text and command ------------------------------------------------------------------------------

MODEL = """
func @main(%x: f32[2, 16, 64, 64]) -> ("y", "mean") {
  %w = constant {value = f32[16, 16, 3, 3] <splat 0.25>} : f32[16, 16, 3, 3] @"weights"
  %0 = conv(%x, %w) {strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]} \
: f32[2, 16, 64, 64] @"Conv_0"
  %1 = sigmoid(%0) : f32[2, 16, 64, 64] @"Sigmoid_1"
  %2 = mul(%0, %1) : f32[2, 16, 64, 64] @"Mul_2"
  %3 = reduce_mean(%2) {axes = [0, 2, 3]} : f32[1, 16, 1, 1] @"Mean_3"
  %4 = sub(%2, %3) : f32[2, 16, 64, 64] @"Sub_4"
  return(%4, %3)
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("model.ir").write_text(MODEL)
    return "model.ir"


def test_the_report_as_text(model: str, bless: bool) -> None:
    facts = aot.explain_fusion(model, targets=["x86-64-v3", "vulkan-1.1"])
    check("fusion/report.txt", format_fusion(facts) + "\n", bless=bless)


def test_the_command(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = aot.explain_fusion(model, targets=["x86-64-v3"], input_shapes={})
    assert cli.main(["inspect", model, "--fusion", "--target", "x86-64-v3"]) == 0
    assert capsys.readouterr() == (format_fusion(facts) + "\n", "")
    assert cli.main(["inspect", model, "--fusion", "--target", "x86-64-v3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == facts


def test_a_module_file_does_not_hold_what_is_needed(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    aot.compile(model).save("model.aotm")
    for arguments, message in (
        (["model.aotm", "--fusion"], "a module file does not hold its model's ops"),
        ([model, "--fusion", "--dedup"], "--fusion goes with none of --verify, --program"),
        (["absent", "--fusion"], "cannot read absent: no such file or directory"),
    ):
        assert cli.main(["inspect", *arguments]) in (1, 2)
        assert message in capsys.readouterr().err


def test_asking_changes_nothing(model: str) -> None:
    """Regions are those of a compile, and there are as many as it dispatches."""
    facts = aot.explain_fusion(model, targets=["x86-64-v3"])
    (function,) = facts["variants"][0]["entry_points"]
    stats = aot.compile(model, targets=["x86-64-v3"]).stats["variants"][0]
    assert len(function["regions"]) == stats["dispatches"]
