"""The processes of a launch: started, heard, guarded and ended."""
