"""The measuring process, which proves, compiles, times and traces one block."""
