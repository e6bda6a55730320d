"""What steps would take on hardware that is not here. Imports no jax."""
