"""What `generate.py` is made of: drivers of the OpenSSL command line and `voms-proxy-fake`, and the cases."""
