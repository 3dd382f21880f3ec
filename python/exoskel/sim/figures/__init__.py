"""The tables and figures of a paper on session-key caches, run again.

M. Lee, B. S. An, E. J. Kim: *A session key caching and prefetching scheme for secure communication in cluster systems*, J. Parallel
Distrib. Comput. 70 (2010). ``docs/paper-key-cache.md`` sets its numbers beside ours.
"""
