"""The one maker of certificates: for the vectors of identity, for tests, and for benches.

`grid` makes an authority with people, hosts and proxies for tests, with `cryptography`: in milliseconds, and without any program of a grid.
`openssl` and `attributes` drive the command lines of OpenSSL and `voms-proxy-fake`: vectors and benches are made by other hands than
those that judge them. `der` and `trust_files` serve both; `vectors/` holds the cases of `vectors/identity/`.
"""
