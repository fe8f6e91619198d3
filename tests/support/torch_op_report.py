"""What the outcomes of torch's op samples are written as: the counts, and the page.

Owns docs/use/torch-op-samples.md; runs nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.support.paths import ROOT
from tests.support.torch_op_samples import (
    CONSIDERED,
    DTYPES,
    FAULTS,
    RANDOM,
    UNDEFINED,
    VERDICTS,
    Outcome,
    Record,
)

PAGE = ROOT / "docs" / "use" / "torch-op-samples.md"


def counts_table(records: Sequence[Record]) -> str:
    """Samples by verdict and dtype."""
    columns = [dtype for dtype in DTYPES if any(record.dtype == dtype for record in records)]
    counts = Counter((r.dtype, o.verdict) for r in records for o in r.outcomes)
    rows = [f"| verdict | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for verdict in VERDICTS:
        cells = " | ".join(str(counts[dtype, verdict]) for dtype in columns)
        rows.append(f"| {verdict} | {cells} |")
    return "\n".join(rows)


def _of(records: Sequence[Record], verdicts: Sequence[str]) -> Iterator[tuple[Record, Outcome]]:
    for record in records:
        yield from ((record, o) for o in record.outcomes if o.verdict in verdicts)


def cause(note: str) -> list[str]:
    """Why a refusal is one, without the ops, names and numbers of its sample."""
    lines = note.splitlines()
    causes = []
    for line in lines[1:] or lines:
        text = re.sub(r"^(model: )?([\w.]+ \(node '[^']*'[^)]*\): )?", "", line.strip())
        text = re.sub(r"'[^']*'", "'...'", text.split("; ")[0])
        text = re.sub(r"\[[^\]]*\]", "[...]", text)
        causes.append(re.sub(r"\b\d+(\.\d+)?\b", "N", text)[:160].replace("|", "/"))
    return list(dict.fromkeys(causes))


def refusals(records: Sequence[Record]) -> str:
    """Causes of refusals, most frequent first, and the ops that have them."""
    groups: dict[str, Counter[str]] = {}
    for record, outcome in _of(records, ["refused"]):
        for text in cause(outcome.note):
            groups.setdefault(text, Counter())[record.name] += 1
    rows = ["| samples | cause | ops |", "|---|---|---|"]
    for text, found in sorted(groups.items(), key=lambda item: (-item[1].total(), item[0])):
        rows.append(f"| {found.total()} | {text} | {', '.join(sorted(found))} |")
    return "\n".join(rows) if groups else "None."


def faults(records: Sequence[Record]) -> str:
    rows = ["| op | dtype | verdict | note |", "|---|---|---|---|"]
    for record, outcome in _of(records, FAULTS):
        note = " ".join(outcome.note.split()).replace("|", "/")[:160]
        rows.append(f"| {record.name} | {record.dtype} | {outcome.verdict} | {note} |")
    return "\n".join(rows) if len(rows) > 2 else "None."


def page(records: Sequence[Record]) -> str:
    import torch

    samples = max(record.samples for record in records)
    apart = [", ".join(f"`{name}`" for name in sorted(names)) for names in (RANDOM, UNDEFINED)]
    version = torch.__version__.split("+")[0]
    names = len({record.name for record in records})
    return "\n".join(
        [
            "# PyTorch's op samples",
            "",
            "torch has samples of its own ops, for its own tests: `op_db` of",
            "`torch.testing._internal.common_methods_invocations`, which needs `expecttest`. Each",
            "is exported by `torch.export`, compiled for the host, run, and compared with what",
            "torch itself computes: dtypes, shapes, integers, NaN and infinities exactly, floats",
            "within a tolerance of their dtype. A sample runs in a child process and fails if it",
            "ends that process or takes more than 20 s of a core.",
            "",
            "    python benchmarks/torch_op_samples.py --samples N --out samples.jsonl",
            "    python benchmarks/torch_op_samples.py --page samples.jsonl",
            "",
            f"The second command writes this page. Here: torch {version}, {names} names of ops,",
            f"N = {samples}: of an op and dtype with more samples, those are spread over its first",
            f"{CONSIDERED}.",
            "",
            "## Counts",
            "",
            counts_table(records),
            "",
            "## What is wrong",
            "",
            faults(records),
            "",
            "## What is refused",
            "",
            "A refusal is one message at compile time that names every op that is missing.",
            "",
            refusals(records),
            "",
            "## What is left out",
            "",
            f"Results that are random: {apart[0]}.",
            "",
            f"Results that torch leaves undefined: {apart[1]}.",
            "",
        ]
    )


def write(records: Sequence[Record]) -> None:
    PAGE.write_text(page(records))
