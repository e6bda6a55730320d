"""The order in which arms take their turns."""

from __future__ import annotations

import random
from collections.abc import Iterator


def balanced_orders(arms: list[str], rounds: int, seed: int) -> Iterator[list[str]]:
    """One order a round, from randomised Williams squares.

    Within a square of n rounds (2n for odd n) every arm has every position once (twice) and
    follows every other arm equally often, so that neither a place in the round nor a predecessor
    favours anyone (Williams 1949, "Experimental designs balanced for the estimation of residual
    effects of treatments"). Every square assigns the arms anew and shuffles its rows.
    """
    rng = random.Random(seed)
    made = 0
    while made < rounds:
        labels = rng.sample(arms, len(arms))
        square = williams_square(len(arms))
        rng.shuffle(square)
        for row in square[: rounds - made]:
            yield [labels[index] for index in row]
        made += len(square)


def williams_square(size: int) -> list[list[int]]:
    """Rows of a Latin square in which every ordered pair is adjacent equally often."""
    # The first row goes 0, n-1, 1, n-2 ...: its neighbours' differences are all different, and
    # adding a constant to a row keeps them.
    first = [index // 2 if index % 2 == 0 else size - 1 - index // 2 for index in range(size)]
    square = [[(index + shift) % size for index in first] for shift in range(size)]
    if size % 2 and size > 1:
        square += [row[::-1] for row in square]
    return square
