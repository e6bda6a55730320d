"""Why one step is slower than another: from what traces showed, as stored. Imports no jax."""
