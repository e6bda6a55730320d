"""Lockstep's self-test: false alarms and planted slowdowns, compared with other tools."""
