"""Private: the doctor, which checks the server, the schema and the queued work and says what to do about problems."""

from flowfabric.doctor.diagnose import diagnose

__all__ = ["diagnose"]
