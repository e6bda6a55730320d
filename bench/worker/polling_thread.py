"""A thread that polls while other code runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def polling(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `look` on a thread repeatedly within the context, and once more at its end."""
    done = threading.Event()

    def poll() -> None:
        look()
        while not done.wait(every_s):
            look()
        look()

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()
