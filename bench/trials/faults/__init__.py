"""Is anything lost when something goes wrong? Faults are injected into real runs, and looked after.

A fault is one entry of `table.FAULTS`: what goes wrong, how it is planted, and a function that
runs it and says what it left behind. `lab` starts runs as a person would, and watches them;
`planted/` holds the files that go wrong. `session` runs the faults and keeps what was found,
`command` and `page` show it.
"""
