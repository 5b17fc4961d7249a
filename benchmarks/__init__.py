"""Measurements of this repository against its peers; not installed with it."""
