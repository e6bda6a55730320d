"""Presentation of numbers: sentences, tables, charts, pages and the terminal."""
