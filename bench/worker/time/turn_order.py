"""The order in which arms take their turns."""

import random
from collections.abc import Iterator, Sequence
from itertools import count

REENTRY = 8


class Orders:
    """The rounds' orders, without end. Arms may leave; every REENTRY-th round has all."""

    def __init__(self, arms: list[str], seed: int) -> None:
        self._arms = arms
        self._rng = random.Random(seed)
        self.keep(arms)

    def keep(self, arms: Sequence[str]) -> None:
        """Continue with only these arms."""
        self._kept = [name for name in self._arms if name in arms]
        self._balanced = balanced_orders(self._kept, self._rng)

    def __iter__(self) -> Iterator[list[str]]:
        for number in count(1):
            everyone = number % REENTRY == 0 and len(self._kept) < len(self._arms)
            yield (
                self._rng.sample(self._arms, len(self._arms)) if everyone else next(self._balanced)
            )


def balanced_orders(arms: list[str], rng: random.Random) -> Iterator[list[str]]:
    """Yield one order per round, endlessly, from randomised Williams squares.

    Within a square of n rounds (2n for odd n) every arm has every position once (twice) and follows
    every other arm equally often, so that neither position nor predecessor favours any arm
    (Williams 1949, "Experimental designs balanced for the estimation of residual effects of
    treatments"). Every square assigns the arms anew and shuffles its rows.
    """
    while True:
        labels = rng.sample(arms, len(arms))
        square = williams_square(len(arms))
        rng.shuffle(square)
        for row in square:
            yield [labels[index] for index in row]


def williams_square(size: int) -> list[list[int]]:
    """Return rows of a Latin square in which every ordered pair is adjacent equally often."""
    # In the first row, 0, n-1, 1, n-2 ..., the differences of neighbours are all different, and
    # adding a constant to a row preserves them.
    first = [index // 2 if index % 2 == 0 else size - 1 - index // 2 for index in range(size)]
    square = [[(index + shift) % size for index in first] for shift in range(size)]
    if size % 2 and size > 1:
        square += [row[::-1] for row in square]
    return square
