"""pytest as the front of a run: its plugins, its configuration and its only test function."""
