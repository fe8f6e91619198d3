"""Tells when there is speech in a sound that comes in pieces; the model's memory stays with it.

    python samples/03-voice-activity/run.py

The model (Silero's voice activity detector) is fetched by package name and checked by sha256,
compiled once for this machine with its state kept, and called once for each 32 ms of sound.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import aot

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from model_zoo import FetchError, fetch  # noqa: E402
from voice import RATE, Sound, beep, hiss, silence, word  # noqa: E402

PIECE, BEFORE = 512, 64  # samples that are new in a call, and that are seen again
THRESHOLD = 0.5
LEVELS = " ▁▂▃▄▅▆▇█"
# what there is to hear
SCENE: tuple[tuple[str, Sound], ...] = (
    ("beep", np.concatenate([silence(0.6), beep(0.4), silence(0.6)])),
    ("speech", word("aeiou", 130)),
    ("hiss", np.concatenate([silence(0.8), hiss(0.3, 0.05), silence(0.8)])),
    ("speech", word("oaea", 190)),
    ("silence", silence(0.8)),
)


def listen(program: aot.Program, sound: Sound) -> NDArray[np.float32]:
    """The chance of speech in each piece of the sound; the program keeps what it has heard."""
    padded = np.concatenate([np.zeros(BEFORE, np.float32), sound])
    chances = []
    for start in range(0, len(sound) - PIECE + 1, PIECE):
        piece = padded[start : start + BEFORE + PIECE]
        chances.append(program({"input": piece[None]})["output"][0, 0])
    return np.array(chances)


def main() -> int:
    model = fetch("silero_vad_16k")
    started = time.perf_counter()
    module = aot.compile(model, states={"state": "stateN"})
    compiled = time.perf_counter()
    path = Path("voice-activity.aotm")
    module.save(path)
    program = aot.load(path)
    sound = np.concatenate([part for _, part in SCENE])
    sound += hiss(len(sound) / RATE, 0.004)[: len(sound)]  # no room is quite silent

    listening = time.perf_counter()
    chances = listen(program, sound)
    seconds = time.perf_counter() - listening
    pieces = len(chances)
    loud = np.abs(sound[: pieces * PIECE].reshape(pieces, PIECE)).max(axis=1)
    print("sound   " + "".join(LEVELS[round(8 * min(1.0, v / 0.4))] for v in loud))
    print("speech  " + "".join("#" if c > THRESHOLD else "." for c in chances))

    wrong = report(chances)
    program.reset()
    is_same = np.array_equal(chances, listen(program, sound))
    print(f"after a reset: {'the same again' if is_same else 'not the same'}")
    print(
        f"{path}: compiled in {compiled - started:.2f} s, {1e6 * seconds / pieces:.0f} us for "
        f"{1e3 * PIECE / RATE:.0f} ms of sound, state kept: {', '.join(map(str, program.states))}"
    )
    return 0 if is_same and not wrong else 1


def report(chances: NDArray[np.float32]) -> int:
    """Prints what was heard in each part of the scene; gives how many parts were misheard."""
    wrong, start = 0, 0
    for what, part in SCENE:
        first, last = start // PIECE, (start + len(part)) // PIECE
        start += len(part)
        share = float(np.mean(chances[first:last] > THRESHOLD))
        is_heard = share > THRESHOLD
        wrong += is_heard != (what == "speech")
        print(f"{what}: {'speech' if is_heard else 'no speech'} ({share:.0%} of the time)")
    return wrong


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (aot.AotError, FetchError) as error:
        sys.exit(f"error: {error}")
