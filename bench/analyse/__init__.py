"""Derivation of numbers from stored rows: statistics, verdicts, tables and causes. No words."""
