"""Printed plots as SVG and PNG: a module for each printed kind of bench.present.charts.CHARTS.

The same rows give the same bytes. Marks or dashes repeat every distinction of colours.
"""
