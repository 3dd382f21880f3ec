"""Integrate a function that is wild in one place: the interval is divided where it has to be."""

import math

import exoskel as ex

TOLERANCE = 1e-9

Interval = tuple[float, float]


def height(x: float) -> float:
    """Compute the function: its waves are the shorter, the nearer to zero."""
    return math.sin(1 / (x + 0.01))


def simpson(interval: Interval) -> float:
    """Estimate the integral over an interval by a parabola."""
    left, right = interval
    middle = (left + right) / 2
    return (right - left) / 6 * (height(left) + 4 * height(middle) + height(right))


def halves(interval: Interval) -> list[Interval]:
    """Divide an interval."""
    left, right = interval
    middle = (left + right) / 2
    return [(left, middle), (middle, right)]


def is_good(interval: Interval) -> bool:
    """Say whether the halves give about the same."""
    finer = sum(map(simpson, halves(interval)))
    return abs(finer - simpson(interval)) < TOLERANCE * (interval[1] - interval[0])


program = ex.DivideAndConquer(is_good, simpson, halves, math.fsum)
(integral,) = ex.run(program, [(0.0, 1.0)])
print(f"{integral:.6f}")
