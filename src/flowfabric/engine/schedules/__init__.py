"""Schedules: submit an execution repeatedly, at the ticks of a cron expression or an interval."""

from flowfabric.engine.schedules.fire import fire_schedule, fire_schedules
from flowfabric.engine.schedules.list import describe_schedule, list_schedules
from flowfabric.engine.schedules.manage import (
    change_schedule,
    create_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
    submission_of,
)
from flowfabric.engine.schedules.ticks import check_timing

__all__ = [
    "change_schedule",
    "check_timing",
    "create_schedule",
    "delete_schedule",
    "describe_schedule",
    "fire_schedule",
    "fire_schedules",
    "list_schedules",
    "pause_schedule",
    "resume_schedule",
    "submission_of",
]
