"""What compiled programs say of themselves."""
