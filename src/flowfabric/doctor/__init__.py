"""The doctor: what is wrong with a server, a schema and the work in it, and what to do about it."""

from flowfabric.doctor.diagnose import diagnose

__all__ = ["diagnose"]
