"""Calls os._exit when it is imported: the process that imports it is gone without a word."""

import os

os._exit(7)
