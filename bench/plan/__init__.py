"""Planning: which blocks and cells the options of a run select, and how they are measured."""
