"""Stands in for uv: knows two Pythons, of which only the older one can have jax 0.10.

Its calls are appended to FAKE_UV_LOG. FAKE_UV_PYTHON is the script that stands in for the Python
of the environments that it makes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

RELEASES = ["0.10.2", "0.11.0", "0.11.1", "0.12.0"]
words = sys.argv[1:]
with Path(os.environ["FAKE_UV_LOG"]).open("a") as log:
    log.write(" ".join(words) + "\n")
match words:
    case ["python", "list", *_]:
        one = {"implementation": "cpython", "path": "/old/python"}
        parts = {"major": 3, "minor": 11, "patch": 7}
        print(
            json.dumps(
                [one | {"version_parts": parts}, one | {"path": None, "version_parts": parts}]
            )
        )
    case ["pip", "compile", "-", *_]:
        wanted = sys.stdin.readline().strip()
        if wanted.startswith("-r "):
            wanted = Path(wanted.removeprefix("-r ")).read_text().strip()
        if wanted.endswith(".whl"):
            print(f"flax==0.12.8\njax @ file://{wanted}")
            sys.exit()
        if os.environ.get("FAKE_UV_UNREACHABLE") == wanted:
            sys.exit("error: Failed to fetch: https://index/\n  cause: Connection refused\n")
        if between := re.fullmatch(r"jax>(.*),<(.*)", wanted):
            known = [one for one in RELEASES if between[1] < one < between[2]]
        else:
            known = RELEASES if "/old/python" in words else RELEASES[1:]
            known = [one for one in known if one == wanted.partition("==")[2]]
        if not known:
            sys.exit(f"No solution found: cause: Because there is no version of {wanted}")
        print(f"flax==0.12.8\njax=={known[-1]}" if not between else f"jax=={known[-1]}")
    case ["venv", *_, folder]:
        for part in ("bin", "lib/site-packages"):
            Path(folder, part).mkdir(parents=True)
        if "FAKE_UV_PYTHON" in os.environ:
            python = Path(folder, "bin", "python")
            python.write_text(os.environ["FAKE_UV_PYTHON"])
            python.chmod(0o755)
    case ["pip", "install", *_] if "FAKE_UV_BREAKS" in os.environ:
        sys.exit("the disk is full")
