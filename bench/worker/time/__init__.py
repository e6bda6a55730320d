"""The clock, the order of turns, and measurements of the host around them."""
