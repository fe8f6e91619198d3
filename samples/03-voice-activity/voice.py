"""Sounds, made with numpy alone: words of vowels, a beep, hiss. f32 at RATE samples a second."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Sound = NDArray[np.float32]

RATE = 16_000
LOUDNESS = 0.4
# Frequency and bandwidth, in Hz, of the three resonances that make a vowel (after Peterson and
# Barney, 1952).
VOWELS = {
    "a": ((730, 90), (1090, 110), (2440, 170)),
    "e": ((530, 70), (1840, 100), (2480, 170)),
    "i": ((270, 60), (2290, 100), (3010, 170)),
    "o": ((570, 80), (840, 100), (2410, 170)),
    "u": ((300, 60), (870, 90), (2240, 150)),
}
VOWEL_SECONDS, GAP_SECONDS = 0.18, 0.05


def silence(seconds: float) -> Sound:
    return np.zeros(int(seconds * RATE), np.float32)


def beep(seconds: float, hertz: float = 1000.0) -> Sound:
    t = np.arange(int(seconds * RATE)) / RATE
    return np.asarray(LOUDNESS * np.sin(2 * np.pi * hertz * t), np.float32)


def hiss(seconds: float, loudness: float = LOUDNESS) -> Sound:
    noise = np.random.default_rng(3).uniform(-1, 1, int(seconds * RATE))
    return np.asarray(loudness * noise, np.float32)


def word(vowels: str, pitch: float) -> Sound:
    """Vowels one after the other, the voice falling a little in each."""
    parts = [np.append(_vowel(v, pitch), silence(GAP_SECONDS)) for v in vowels]
    sound = np.concatenate(parts)
    return np.asarray(LOUDNESS * sound / np.abs(sound).max(), np.float32)


def _vowel(name: str, pitch: float) -> NDArray[np.float64]:
    count = int(VOWEL_SECONDS * RATE)
    time = np.arange(count) / RATE
    # the voice trembles, as all do: what is exactly periodic is a machine
    hertz = pitch * (1 - 0.1 * time / VOWEL_SECONDS) + 3 * np.sin(2 * np.pi * 5 * time)
    phase = np.cumsum(hertz) / RATE
    pulses = np.diff(np.floor(phase), prepend=0.0)
    random = np.random.default_rng(ord(name))
    sound = np.convolve(pulses * (1 + 0.1 * random.standard_normal(count)), np.hanning(40), "same")
    sound += 0.01 * random.standard_normal(count)
    for frequency, bandwidth in VOWELS[name]:
        sound = _resonant(sound, frequency, bandwidth)
    fade = np.minimum(np.arange(count), np.arange(count)[::-1]) / (0.03 * RATE)
    return np.asarray(sound * np.minimum(fade, 1))


def _resonant(x: NDArray[np.float64], frequency: float, bandwidth: float) -> NDArray[np.float64]:
    """A resonance: y[n] = x[n] + b y[n-1] + c y[n-2], of gain 1 at 0 Hz."""
    radius = np.exp(-np.pi * bandwidth / RATE)
    b, c = 2 * radius * np.cos(2 * np.pi * frequency / RATE), -(radius**2)
    y, last, before = np.empty_like(x), 0.0, 0.0
    for n, sample in enumerate(x * (1 - b - c)):
        last, before = sample + b * last + c * before, last
        y[n] = last
    return y
