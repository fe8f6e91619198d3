"""Generates what of the documentation follows from the code: the tables of targets, operators and
options, the list of ops, and the options in the docstrings of `aot.compile` and its groups.

    python docs/generate_tables.py [--check]

Owns what stands between `generated:` markers of a page and nothing else of it, ops.md whole, and
the entries of options in aot/api.py.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ROOT / "docs" / "use" / "targets.md"
ONNX = ROOT / "docs" / "use" / "onnx.md"
OPS = ROOT / "docs" / "internals" / "ops.md"
CLI = ROOT / "docs" / "use" / "cli.md"
README = ROOT / "README.md"
COMPARISON = ROOT / "docs" / "use" / "comparison.md"
PYTORCH = ROOT / "docs" / "use" / "pytorch.md"
TFLITE = ROOT / "docs" / "use" / "tflite.md"
GGUF = ROOT / "docs" / "use" / "gguf.md"
ALGEBRA = ROOT / "docs" / "internals" / "algebra.md"
API = ROOT / "aot" / "api.py"
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "docs"))

import cli_tables  # noqa: E402
import figures  # noqa: E402

DEVICES = {"cpu": "CPU", "vulkan": "GPU"}


def targets_table() -> str:
    """One row a target file."""
    import aot

    rows = ["| target | for | device |", "|---|---|---|"]
    rows += [f"| `{t.name}` | {t.summary} | {DEVICES[t.device]} |" for t in aot.targets()]
    return "\n".join(rows)


def onnx_operators() -> str:
    """Names in alphabetical order, those of other domains last."""
    from aot.frontends.onnx import CONTROL, SEQUENCES, supported_ops

    plain = {name for domain, name, _ in supported_ops() if domain == ""}
    names = sorted(plain | set(CONTROL) | set(SEQUENCES))
    others = [f"{domain}.{name}" for domain, name, _ in supported_ops() if domain]
    return textwrap.fill(", ".join([*names, *others]) + ".", 120, break_on_hyphens=False)


def torch_operators() -> str:
    """Names of PyTorch's ops in alphabetical order, without their overloads."""
    from aot.frontends.torch import supported_ops

    names = {name.removeprefix("aten.").partition(".")[0] for name in supported_ops()}
    return textwrap.fill(", ".join(sorted(names)) + ".", 120, break_on_hyphens=False)


def tflite_operators() -> str:
    """Names of TFLite's operators in alphabetical order, custom ones last."""
    from aot.frontends.tflite import supported_ops

    return textwrap.fill(", ".join(supported_ops()) + ".", 120, break_on_hyphens=False)


def gguf_architectures(*, embed: bool) -> str:
    """One row an architecture: of those that embed texts, or that continue them."""
    from aot.frontends.gguf.architectures import ARCHITECTURES

    rows = ["| architecture | models |", "|---|---|"]
    rows += [
        f"| `{name}` | {row.models} |"
        for name, row in sorted(ARCHITECTURES.items())
        if row.pooling.is_causal != embed
    ]
    return "\n".join(rows)


def gguf_block_types() -> str:
    """The block types' names, floats first, then by their bits an element."""
    from aot.frontends.gguf.block_types import BLOCK_TYPES

    types = sorted(
        BLOCK_TYPES.values(), key=lambda t: (t.floats is None, -t.bytes / t.elements, t.name)
    )
    return textwrap.fill(", ".join(type.name for type in types) + ".", 120)


def options_table() -> str:
    """One row an option of a compile."""
    from aot.api import GROUPS
    from aot.options import OPTIONS

    groups = {
        option: f"`{keyword}.{own}`, `{option}`"
        for keyword, group in GROUPS.items()
        for own, option in group.names().items()
    }
    rows = ["| option | of `aot.compile` | in a batch file | meaning |", "|---|---|---|---|"]
    for o in OPTIONS.values():
        flags = f"{o.flags} {o.metavar or ''}".strip().replace("|", "\\|").replace("/--", "`, `--")
        help = o.help if o.name != "disable" else o.help.partition(";")[0] + " ([below](#disable))."
        name = groups.get(o.name, f"`{o.name}`")
        rows.append(f"| `{flags}` | {name} | {'yes' if o.in_batch else ''} | {help} |")
    return "\n".join(rows)


def disable_table() -> str:
    """One row a pass or feature that a compile can do without."""
    from aot.switches import DISABLEABLE

    rows = ["| `--disable` | then |", "|---|---|"]
    return "\n".join(rows + [f"| `{name}` | {instead} |" for name, instead in DISABLEABLE.items()])


def option_entries(names: Mapping[str, str]) -> str:
    """Options as docstrings have them, by the names that stand there."""
    from aot.options import OPTIONS

    def details(option: str) -> str:
        text = OPTIONS[option].details
        for name, other in names.items():
            text = text.replace(f"`{other}`", f"`{name}`")
        return text

    return "\n".join(
        textwrap.fill(
            f"{name}: {details(option)}",
            100,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, option in names.items()
    )


def rules_table() -> str:
    """One row a rule that may change a value."""
    from aot.passes.simplify.algebra import RULES
    from aot.passes.simplify.bounds import EXACT

    rows = ["| rule | changes | roundings |", "|---|---|---|"]
    rows += [
        f"| `{rule.equation.replace('|', chr(92) + '|')}` | {rule.bound.change.value} "
        f"| {rule.bound.roundings or ''} |"
        for rule in RULES
        if rule.bound != EXACT
    ]
    return "\n".join(rows)


TARGETS_SECTIONS = {"targets": targets_table}
ONNX_SECTIONS = {"onnx": onnx_operators}
CLI_SECTIONS = {
    "commands": cli_tables.commands_table,
    "options": options_table,
    "disable": disable_table,
    "command options": cli_tables.command_options,
}
README_SECTIONS = {"peers": figures.peers_table, "conditions": figures.conditions}
COMPARISON_SECTIONS = {"conditions": figures.conditions, "metrics": figures.metric_tables}
GGUF_SECTIONS = {
    "architectures": partial(gguf_architectures, embed=False),
    "encoders": partial(gguf_architectures, embed=True),
    "block types": gguf_block_types,
}
Sections = Mapping[str, Callable[[], str]]


def generate(path: Path, sections: Sections) -> str:
    """The text of `path` with its sections made anew.

    Raises:
        ValueError: the markers of a section are missing.
    """
    text = path.read_text(encoding="utf-8")
    for name, make in sections.items():
        text = replaced(
            path, text, f"<!-- generated: {name} -->\n", make(), f"\n<!-- end: {name} -->"
        )
    return text


def docstrings_of_api(text: str) -> str:
    """The source of aot/api.py with the entries of options made anew: of the groups, and of
    `compile` those that are in none."""
    from aot.api import GROUPS
    from aot.options import OPTIONS

    names = {keyword: group.names() for keyword, group in GROUPS.items()}
    for keyword, group in GROUPS.items():
        begin = text.index(f"class {group.__name__}(OptionGroup):")
        start = text.index("    Attributes:\n", begin) + len("    Attributes:\n")
        end = text.index('    """\n', start)
        text = f"{text[:start]}{option_entries(names[keyword])}\n{text[end:]}"
    grouped = {option for own in names.values() for option in own.values()}
    alone = {name: name for name in OPTIONS if name not in grouped}
    start = text.index(f"        {next(iter(alone))}: ", text.index("def compile("))
    end = text.index(f"        {next(iter(GROUPS))}: ", start)
    return f"{text[:start]}{option_entries(alone)}\n{text[end:]}"


def replaced(path: Path, text: str, begin: str, made: str, end: str) -> str:
    """`text` with `made` between `begin` and `end`."""
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{path}: the markers {begin.strip()!r} are missing")
    return pattern.sub(lambda _: f"{begin}{made}{end}", text)


def main() -> int:
    """Writes the files, or with --check says which are out of date (exit status 1)."""
    import op_tables

    parser = argparse.ArgumentParser(description="Generates tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    status = 0
    for path, make in (
        (README, lambda: generate(README, README_SECTIONS)),
        (COMPARISON, lambda: generate(COMPARISON, COMPARISON_SECTIONS)),
        (TARGETS, lambda: generate(TARGETS, TARGETS_SECTIONS)),
        (ONNX, lambda: generate(ONNX, ONNX_SECTIONS)),
        (CLI, lambda: generate(CLI, CLI_SECTIONS)),
        (PYTORCH, lambda: generate(PYTORCH, {"torch": torch_operators})),
        (TFLITE, lambda: generate(TFLITE, {"tflite": tflite_operators})),
        (GGUF, lambda: generate(GGUF, GGUF_SECTIONS)),
        (ALGEBRA, lambda: generate(ALGEBRA, {"rules": rules_table})),
        (OPS, op_tables.page),
        (API, lambda: docstrings_of_api(API.read_text(encoding="utf-8"))),
    ):
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = make()
        if new == old:
            continue
        if options.check:
            sys.stderr.write(
                f"{path.relative_to(ROOT)} is out of date: python docs/generate_tables.py\n"
            )
            status = 1
        else:
            path.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
