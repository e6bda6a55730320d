"""Foreign arms: implementations that live in processes of their own, in any framework."""
