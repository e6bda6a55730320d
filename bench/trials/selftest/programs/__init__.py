"""What the tools measure that need a program written for them, in the way their manuals ask."""
