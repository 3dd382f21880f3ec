"""Behaviours of a hostile worker, by what they break."""
