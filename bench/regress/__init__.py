"""Gating a change: the working tree against an earlier revision of itself, side by side.

`revisions` knows git, `bases` says what is compared with what, `plugin` ends the run with an
outcome, which `outcome` finds in the stored rows and `page` puts into words. Imports no jax.
"""
