"""The published runs: their folders, what is checked of them, and the index of them all.

`publish` makes a folder `[workload]_[hardware]_[date]` of a run, `entries` reads what published
folders hold, and `page` writes `reports/README.md` and `reports/index.html`. Imports no jax.
"""
