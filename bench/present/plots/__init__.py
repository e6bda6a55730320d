"""Printed plots, as SVG, PDF and PNG."""
