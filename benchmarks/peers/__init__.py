"""Peers: other engines, measured in the same run on the same Postgres, each in its own virtualenv."""
