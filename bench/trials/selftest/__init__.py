"""Lockstep's self-test: false alarms and detection of planted slowdowns, also by other tools."""
