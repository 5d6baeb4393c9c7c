"""The operations of the engine, by concept: each is a typed call of one SQL function on a connection of the caller.

    from flowfabric.engine import lanes

    await lanes.pause_lane(conn, "reports", by="ops")

    attempts      complete, fail and delay the runs of a worker
    budgets       limits on spending: define, reserve, settle, report
    children      executions that another execution submits
    claims        take executions under a lease, renew and revoke it; grants
    clock         the time of the database
    doctor        facts about the work, from which `ff doctor` draws its findings
    events        the event log: read it, acknowledge, trim
    executions    submit, read, cancel, replay, tag
    flows         executions with dependencies (a DAG)
    holds         an operator's hold on one execution
    lanes         the queues: pause, drain, resume
    overview      waiting, running and stuck executions, in one call
    quotas        limits on rate and concurrency
    routes        classes of executions that are admitted alike
    schedules     submissions by cron or interval
    signing_keys  the secrets that sign tokens and grants
    steps         saved results of a handler, and its journal
    streams       what attempts put out while they run: append frames, read and trim them
    tasks         which tasks the live workers have registered
    turns         which process runs a sweep that only one process may run
    waits         suspend, signal, approve, resume
    workers       the registry of worker processes

Public are the functions that a concept exports; the modules inside a concept are private. The connection comes first,
then what the call is about, then options by name. A concept is SQL that decides and Python that calls it, side by side.
"""

__all__ = [
    "attempts",
    "budgets",
    "children",
    "claims",
    "clock",
    "doctor",
    "events",
    "executions",
    "flows",
    "holds",
    "lanes",
    "overview",
    "quotas",
    "routes",
    "schedules",
    "signing_keys",
    "steps",
    "streams",
    "tasks",
    "turns",
    "waits",
    "workers",
]
