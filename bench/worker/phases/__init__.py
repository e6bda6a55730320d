"""Input arms, and the phases after the rounds: checkpoints and training."""
