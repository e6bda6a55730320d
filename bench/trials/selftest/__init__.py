"""Lockstep measured by itself: false alarms, planted slowdowns, and other tools on the same."""
