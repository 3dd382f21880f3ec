"""Where a slot gets shared contents from that its host doesn't have. Apart from `shared_contents`, which slots load only when a task uses it."""

from . import _core

__all__ = ["in_common", "parent", "source"]

# The slot's manager; none in a process that is no slot.
source: "_core.SharedSource | None" = None
# The slot's parent: its manager, or the supervisor of its worker. A child that a task has forked has another one.
parent: "int | None" = None
# A file that all slots of a worker have open, by which they wait for each other; none in a manager's child.
in_common: "int | None" = None
