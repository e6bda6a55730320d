"""Programs that each answer one question on stdout, as JSON."""
