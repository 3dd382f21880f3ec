"""On which of a job's hosts a process is: each has as many as the others, and neighbours are on one."""

__all__ = ["host_of"]


def host_of(rank: int, count: int, hosts: int) -> int:
    """Return which host a process is on.

    Parameters
    ----------
    rank : int
        Which of the processes that are started together it is, from 0.
    count : int
        How many are started together.
    hosts : int
        How many hosts there are.

    Returns
    -------
    int
        The host, from 0.
    """
    return rank * hosts // count
