"""The measuring process: proves, compiles, times and traces one block. The only part with jax."""
