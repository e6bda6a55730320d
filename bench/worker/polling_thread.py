"""A thread that looks at something again and again while other code runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def polling(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `look` on a thread, over and over, while in here, and once more at the end."""
    done = threading.Event()

    def poll() -> None:
        while True:
            last = done.is_set()
            look()
            if last:
                return
            time.sleep(every_s)

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()
