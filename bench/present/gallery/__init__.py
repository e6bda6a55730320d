"""The published runs: their folders, the checks of them, and the index of all of them."""
