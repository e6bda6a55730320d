"""Printed plots as SVG and PNG: a module for each printed kind of bench.present.charts.CHARTS.

Equal rows give equal bytes. Marks or dashes repeat every distinction made by colour.
"""
