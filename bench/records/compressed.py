"""Values of JSON as compressed text, small enough for a row, which a browser can expand as well."""

import base64
import json
import zlib
from typing import Any


def compressed(value: Any) -> str:
    """Return the base64 of the zlib-compressed JSON of a value."""
    text = json.dumps(value, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def expanded(text: str) -> Any:
    """Return the value that `compressed` compressed."""
    return json.loads(zlib.decompress(base64.b64decode(text)))
