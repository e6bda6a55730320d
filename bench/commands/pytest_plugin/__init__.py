"""pytest as the front end of a run: its plugins, its configuration and its only test function."""
