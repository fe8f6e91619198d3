"""Tests; `tests.support` holds the helpers that they share."""
