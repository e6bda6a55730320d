"""Programs that each answer a question on stdout, as JSON, so that the caller needs no jax."""
