"""Places of the checkout and of its output folders."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: `bench` and `implementations` are imported from here."""

REPORTS = Path("reports")
"""Folder of stored runs, in the working directory."""

PROFILES = Path("profiles")
"""Folder of recorded traces, in the working directory."""
