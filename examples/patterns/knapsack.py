"""Pack a knapsack by branch and bound: choices that can still become the best are fed back, packed knapsacks are results."""

import exoskel as ex

CAPACITY = 250

# How much each thing is worth, and how much it weighs; what is worth most for its weight comes first.
THINGS = sorted(
    ((30 + 37 * n % 41, 20 + 53 * n % 43) for n in range(24)),
    key=lambda thing: thing[0] / thing[1],
    reverse=True,
)

# How many things have been decided about, what those taken are worth, and how much room they leave.
Choice = tuple[int, int, int]


def greedy(choice: Choice) -> int:
    """Take whatever fits, in order."""
    decided, worth, room = choice
    for value, weight in THINGS[decided:]:
        if weight <= room:
            worth, room = worth + value, room - weight
    return worth


def bound(choice: Choice) -> float:
    """Say what a choice can become at most: the first thing that doesn't fit is cut."""
    decided, worth, room = choice
    for value, weight in THINGS[decided:]:
        if weight > room:
            return worth + value * room / weight
        worth, room = worth + value, room - weight
    return worth


AT_LEAST = greedy((0, 0, CAPACITY))


def branch(choice: Choice) -> list[int | ex.Again[Choice]]:
    """Take the next thing, or leave it."""
    decided, worth, room = choice
    if decided == len(THINGS):
        return [worth]
    value, weight = THINGS[decided]
    branches = [(decided + 1, worth, room)]
    if weight <= room:
        branches.append((decided + 1, worth + value, room - weight))
    return [ex.Again(chosen) for chosen in branches if bound(chosen) >= AT_LEAST]


search: ex.Skeleton[Choice, int] = ex.Farm(branch, feedback=True)
best: ex.Skeleton[int, int] = ex.Reduce(max)
print(f"greedy: {AT_LEAST}, best: {ex.run(ex.Pipeline(search, best), [(0, 0, CAPACITY)])}")
