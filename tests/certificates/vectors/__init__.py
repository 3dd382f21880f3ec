"""The cases of `vectors/identity/`, by what they are about; `vectors/identity/generate.py` makes them all."""
