"""What all rooms share: names, statuses, rows, messages and the store. Imports no other room."""
