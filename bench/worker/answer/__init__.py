"""Programs that answer one question on stdout, as JSON, and end."""
