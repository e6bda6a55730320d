"""Predictions of steps on hardware that this machine does not have.

`hardware`, `machines` and `collective_costs` describe chips and links. `compiled_programs`
and `program_formulae` give the work of a step. `step_model` combines them into a time, whose error
`calibration` and `published_results` measure. `projection` and `mesh_ranking` serve requests.
"""
