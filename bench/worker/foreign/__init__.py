"""Foreign arms: implementations in any framework, each in its own processes."""
