"""Peers: other engines, measured in the same run on the same Postgres, each from a virtualenv of its own."""
