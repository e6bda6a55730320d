"""The proof that an implementation computes the right step."""
