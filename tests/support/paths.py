"""Where things lie in the checkout, for tests at any depth."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
GOLDEN = TESTS / "golden"
RUNTIME = ROOT / "runtime"
# names the folder in which the workers of a run share compiled reference models
MODULES_VARIABLE = "AOT_TEST_MODULES_DIR"
