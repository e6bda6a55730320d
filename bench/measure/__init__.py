"""Runs the plan: worker processes, launches and rounds, and what is stored of them."""
