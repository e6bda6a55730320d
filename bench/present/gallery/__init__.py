"""Published runs: their folders, the checks of them, and their index."""
