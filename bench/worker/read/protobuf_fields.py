"""A reader of serialized protocol buffers whose schema jaxlib does not offer."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield each field's number and value, an integer or bytes (protobuf.dev/encoding)."""
    stream = BytesIO(message)

    def varint() -> int:
        more, value = divmod(stream.read(1)[0], 0x80)
        return value + 0x80 * varint() if more else value

    while stream.tell() < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            yield number, stream.read(varint() if kind == 2 else {1: 8, 5: 4}[kind])  # noqa: PLR2004
