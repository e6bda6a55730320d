"""What steps would take on hardware that is not here. Imports no jax.

`hardware`, `placement` and `collectives` are the sheets and what they come to; `programs` and
`formulae` what steps do; `steps` puts them together, and `calibration` and `checks` say how sure
that is. `projection` and `plan` are what is asked for.
"""
