"""Models of recurrent layers, of detection and of control flow; see `tflite_cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from tests.support.tflite_cases import ACTIVATIONS, Making, case

STEPS, BATCH, INPUTS, CELLS, OUTPUTS = 4, 2, 5, 6, 3
TANH = ACTIVATIONS["TANH"]
NONE = -1


def _weight(m: Making, *shape: int) -> int:
    return m.constant(m.numbers(shape, low=-0.7, high=0.7))


def _lstm_operands(
    m: Making, x: int, *, is_coupled: bool, has_peepholes: bool, has_projection: bool, norms: bool
) -> list[int]:
    outputs = OUTPUTS if has_projection else CELLS
    found = [x]
    found += [_weight(m, CELLS, INPUTS) for _ in range(4)]
    found += [_weight(m, CELLS, outputs) for _ in range(4)]
    found += [_weight(m, CELLS) if has_peepholes else NONE for _ in range(3)]
    found += [_weight(m, CELLS) for _ in range(4)]
    found += [_weight(m, OUTPUTS, CELLS), _weight(m, OUTPUTS)] if has_projection else [NONE] * 2
    if is_coupled:
        for place in (1, 5, 9, 12):
            found[place] = NONE
    found += [m.tensor((BATCH, n), is_variable=True) for n in (outputs, CELLS)]
    if norms:
        found += [NONE if is_coupled else _weight(m, CELLS), *(_weight(m, CELLS) for _ in range(3))]
    return found


_LSTMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "peepholes": {"has_peepholes": True},
    "coupled": {"is_coupled": True},
    "projected": {"has_projection": True},
    "norms": {"norms": True},
    "clipped": {"clip": 0.4},
    "keras": {"clip": 10.0},
    "all": {"has_peepholes": True, "has_projection": True, "norms": True, "clip": 0.6},
}


def _lstm_cases() -> None:
    for name, kinds in _LSTMS.items():
        for is_time_first in (False, True):

            @case(f"UNIDIRECTIONAL_SEQUENCE_LSTM-{name}-{is_time_first}", tolerance=1e-5, calls=2)
            def _(m: Making, kinds: Any = kinds, is_time_first: bool = is_time_first) -> int:
                kinds = {
                    **dict.fromkeys(
                        ("is_coupled", "has_peepholes", "has_projection", "norms"), False
                    ),
                    **kinds,
                }
                clip = kinds.pop("clip", 0.0)
                lead = (STEPS, BATCH) if is_time_first else (BATCH, STEPS)
                operands = _lstm_operands(m, m.input((*lead, INPUTS)), **kinds)
                y = m.tensor((*lead, OUTPUTS if kinds["has_projection"] else CELLS))
                how = {"cell_clip": clip, "proj_clip": clip, "time_major": is_time_first}
                m.op(
                    "UNIDIRECTIONAL_SEQUENCE_LSTM",
                    operands,
                    [y],
                    "UnidirectionalSequenceLSTMOptions",
                    fused_activation_function=TANH,
                    **how,
                )
                return y


_lstm_cases()

for _merged in (False, True):

    @case(f"BIDIRECTIONAL_SEQUENCE_LSTM-{_merged}", tolerance=1e-5, calls=2)
    def _(m: Making, is_merged: bool = _merged) -> Sequence[int]:
        kinds = dict.fromkeys(("is_coupled", "has_peepholes", "has_projection", "norms"), False)
        x = m.input((STEPS, BATCH, INPUTS))
        halves = [_lstm_operands(m, x, **kinds) for _ in range(2)]
        operands = [x, *halves[0][1:18], *halves[1][1:18], *halves[0][18:], *halves[1][18:]]
        operands += [NONE] * 9
        width = 2 * CELLS if is_merged else CELLS
        outputs = [m.tensor((STEPS, BATCH, width)) for _ in range(1 if is_merged else 2)]
        how = {"merge_outputs": is_merged, "time_major": True}
        m.op(
            "BIDIRECTIONAL_SEQUENCE_LSTM",
            operands,
            outputs,
            "BidirectionalSequenceLSTMOptions",
            fused_activation_function=TANH,
            **how,
        )
        return outputs


@case("UNIDIRECTIONAL_SEQUENCE_RNN", tolerance=1e-5, calls=2)
def _(m: Making) -> int:
    operands = [m.input((BATCH, STEPS, INPUTS)), _weight(m, CELLS, INPUTS)]
    operands += [_weight(m, CELLS, CELLS), _weight(m, CELLS)]
    operands.append(m.tensor((BATCH, CELLS), is_variable=True))
    y = m.tensor((BATCH, STEPS, CELLS))
    how = {"time_major": False, "fused_activation_function": ACTIVATIONS["RELU"]}
    m.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, [y], "SequenceRNNOptions", **how)
    return y


@case("RNN", tolerance=1e-5, calls=2)
def _(m: Making) -> int:
    operands = [m.input((BATCH, INPUTS)), _weight(m, CELLS, INPUTS)]
    operands += [_weight(m, CELLS, CELLS), _weight(m, CELLS)]
    operands.append(m.tensor((BATCH, CELLS), is_variable=True))
    y = m.tensor((BATCH, CELLS))
    m.op("RNN", operands, [y], "RNNOptions", fused_activation_function=TANH)
    return y


for _rank in (1, 2):

    @case(f"SVDF-{_rank}", tolerance=1e-5, calls=3)
    def _(m: Making, rank: int = _rank) -> int:
        filters, memory = 3 * rank, 5
        operands = [m.input((BATCH, INPUTS)), _weight(m, filters, INPUTS)]
        operands += [_weight(m, filters, memory), _weight(m, 3)]
        operands.append(m.tensor((BATCH, filters * memory), is_variable=True))
        y = m.tensor((BATCH, 3))
        how = {"rank": rank, "fused_activation_function": ACTIVATIONS["RELU"]}
        m.op("SVDF", operands, [y], "SVDFOptions", **how)
        return y


# detection


def _boxes(m: Making, count: int) -> Any:
    corner = m.numbers((count, 2), low=0, high=1)
    return np.concatenate([corner, corner + m.numbers((count, 2), low=0.1, high=0.6)], 1)


for _version in (4, 5):

    @case(f"NON_MAX_SUPPRESSION_V{_version}")
    def _(m: Making, version: int = _version) -> Sequence[int]:
        count, limit = 24, 10
        operands = [m.input((count, 4), data=_boxes(m, count))]
        operands.append(m.input((count,), low=0, high=1))
        operands += [m.constant(np.array(limit, np.int32))]
        operands += [m.constant(np.array(v, np.float32)) for v in (0.4, 0.3)]
        results = [m.tensor((limit,), np.int32)]
        if version == 5:
            operands.append(m.constant(np.array(0, np.float32)))
            results.append(m.tensor((limit,)))
        results.append(m.tensor((), np.int32))
        options = f"NonMaxSuppressionV{version}Options"
        m.op(f"NON_MAX_SUPPRESSION_V{version}", operands, results, options)
        return results


# LiteRT leaves open what is behind the boxes that are chosen, unless each class is for itself
for _is_regular in (False, True):
    for _most in (6, 40) if _is_regular else (6,):

        @case(f"TFLite_Detection_PostProcess-{_is_regular}-{_most}", tolerance=1e-5)
        def _(m: Making, is_regular: bool = _is_regular, most: int = _most) -> Sequence[int]:
            count, classes = 30, 4
            codes = m.input((1, count, 4), low=-1, high=1)
            scores = m.input((1, count, classes + 1), low=0, high=1)
            centre = m.numbers((count, 2), low=0, high=1)
            size = m.numbers((count, 2), low=0.1, high=0.5)
            anchors = m.constant(np.concatenate([centre, size], 1))
            options = {
                "max_detections": most,
                "max_classes_per_detection": 1,
                "detections_per_class": 5,
                "nms_score_threshold": 0.4,
                "nms_iou_threshold": 0.5,
                "num_classes": classes,
                "y_scale": 10.0,
                "x_scale": 10.0,
                "h_scale": 5.0,
                "w_scale": 5.0,
                "use_regular_nms": is_regular,
            }
            shapes = [(1, most, 4), (1, most), (1, most), (1,)]
            results = [m.tensor(shape) for shape in shapes]
            m.op(
                "TFLite_Detection_PostProcess",
                [codes, scores, anchors],
                results,
                custom=bytes(flexbuffers.Dumps(options)),
            )
            return results
