"""What happens beside the rounds: input, checkpoints, training."""
