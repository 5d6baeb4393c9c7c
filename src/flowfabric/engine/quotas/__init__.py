"""Quotas: rate and concurrency limits."""

from flowfabric.engine.quotas.define import change_quota, create_quota, describe_quota, list_quotas
from flowfabric.engine.quotas.trim import trim_windows

__all__ = ["change_quota", "create_quota", "describe_quota", "list_quotas", "trim_windows"]
