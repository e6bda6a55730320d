"""The commands of `python -m bench`: one file each, with a function of the file's own name.

A new file here is a new command: `bench.__main__` registers every module that defines a function of
the module's name. Its own Typer settings, such as exit codes, are in `SETTINGS`. Commands import
what they need when they run, so that `--help` and mistyped options are answered at once.
"""
