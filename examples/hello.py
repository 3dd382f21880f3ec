"""Count the prime numbers below 100,000 on four slots of this machine."""

import exoskel as ex

STEP = 1_000


def primes_from(start: int) -> int:
    """Count the prime numbers in one step."""
    numbers = range(max(start, 2), start + STEP)
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in numbers)


with ex.Manager(primes_from, ex.ParDegree(4)) as manager:
    counts = manager.map(range(0, 100_000, STEP))
    print(sum(counts), "primes below 100,000")
    print(manager.summary())
