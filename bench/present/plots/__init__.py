"""Plots for print, as SVG and PNG: one module a kind, each with `draw`. Same rows, same bytes.

Whatever is told apart by colour is told apart by a mark, a hatch or dashes too. `style` has what
they share.
"""
