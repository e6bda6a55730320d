"""Cell-by-cell comparison of two stored runs: what became faster or slower, with intervals."""
