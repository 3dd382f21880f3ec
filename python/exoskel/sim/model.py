"""How many peers a cache serves: the ON/OFF model in closed form."""

from .. import _core
from .arguments import whole_number

__all__ = ["capacity"]


def capacity(entries: int, off_on: float, hit: float = 0.9) -> int:
    """Return the largest number of peers whose active keys all fit into a cache, with a given probability.

    Each peer talks (ON) and is silent (OFF) in turn, independent of the others; then the number of those that talk has a binomial
    distribution (Lee, An, Kim, J. Parallel Distrib. Comput. 2010, equations 1 to 3). It counts time, not packets: what a cache
    hits depends on how often a key is used while its peer talks, too.

    Parameters
    ----------
    entries : int
        Keys that the cache holds.
    off_on : float
        Mean silent time over mean talking time of a peer.
    hit : float
        The probability, between 0 and 1.

    Returns
    -------
    int
        Peers, each with one key.

    Raises
    ------
    ValueError
        If a parameter can't be; the text names it.
    """
    return _core.key_cache_capacity(whole_number("entries", entries, least=1), off_on, hit)
