"""Fault injection: is anything lost when something goes wrong?

A fault is an entry of `fault_table.FAULTS`: what goes wrong, how it is injected, and a trial that
injects it and observes what it leaves behind. `planted` has the implementations and workloads that
go wrong, `observed_run` starts runs as a person would and watches them, `run_scenarios` has the
trials. `fault_session` runs them and stores the outcomes, which `fault_page` shows.
"""
