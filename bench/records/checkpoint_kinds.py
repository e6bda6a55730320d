"""What of checkpointing may be measured. Imports no jax."""

from __future__ import annotations

MODES = {
    "sync": "training goes on when the checkpoint is complete",
    "async": "training goes on once the state is copied, while its files are written",
}
"""How a state may be saved, and what that means."""
