"""Fault injection: is any result lost when something goes wrong?

A fault is an entry of `fault_table.FAULTS`: what goes wrong, how it is injected, and a trial that
injects it and observes the consequences. `planted` has the faulty implementations and workloads,
`observed_run` starts runs as a user would and observes them, and `run_scenarios` has the trials.
`fault_session` runs them, stores the outcomes and shows them.
"""

FOLDER = "LOCKSTEP_FAULT_FOLDER"
"""Environment variable with the path of the trial's folder."""
WAITING = "waiting"
"""Name of a file in it, which says that a planted file waits for the trial."""
