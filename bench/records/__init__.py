"""Names, statuses, rows, messages and the store, which all rooms share."""
