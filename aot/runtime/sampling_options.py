"""The numbers that say how tokens are chosen, of which commands make their options.

Imports nothing, so that a command line without a model costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingOption:
    """A number of `Sampler`'s, as a field of aot_sampler_options_t.

    Attributes:
        name: of the field.
        kind: float or int.
        help: for a command line.
    """

    name: str
    kind: type
    help: str


NUMBERS = (
    SamplingOption("temperature", float, "How much chance there is. Default: none, the largest."),
    SamplingOption("top_k", int, "Only the K most probable."),
    SamplingOption("typical_p", float, "The most typical that together exceed P."),
    SamplingOption("top_p", float, "The most probable that together reach P."),
    SamplingOption("min_p", float, "Those at least P times as probable as the first."),
    SamplingOption("xtc_probability", float, "How often top choices are excluded."),
    SamplingOption("xtc_threshold", float, "Which are top choices: at most 0.5. Default: 0.1."),
    SamplingOption("mirostat_tau", float, "Bits of surprise to keep, in the place of the above."),
    SamplingOption("mirostat_eta", float, "How fast Mirostat follows. Default: 0.1."),
    SamplingOption("repetition_penalty", float, "Divides logits of tokens that came lately."),
    SamplingOption("frequency_penalty", float, "Subtracted as often as a token came lately."),
    SamplingOption("presence_penalty", float, "Subtracted where a token came lately."),
    SamplingOption("penalty_window", int, "What lately is, in tokens. Default: 64."),
    SamplingOption("dry_multiplier", float, "Of what going on with a repetition costs."),
    SamplingOption("dry_base", float, "By what longer ones cost more. Default: 1.75."),
    SamplingOption("dry_allowed_length", int, "Repetitions that are free end here. Default: 2."),
    SamplingOption("dry_window", int, "In how many last tokens. Default: 4096."),
    SamplingOption("seed", int, "Of the chance: 0 to 2^64 - 1."),
)
