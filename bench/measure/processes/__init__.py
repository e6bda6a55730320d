"""Child processes: they are started, read, guarded and ended here."""
