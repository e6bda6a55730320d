"""Child processes: starting, reading, guarding and ending them."""
