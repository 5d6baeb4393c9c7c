"""The doctor: finds what is wrong with the server, the schema and the work in it, and says what to do."""

from flowfabric.doctor.diagnose import diagnose

__all__ = ["diagnose"]
