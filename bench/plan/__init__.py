"""From options to a plan: which blocks and cells are measured, and how."""
