"""Programs for the tools that cannot time an existing one, written as their manuals say."""
