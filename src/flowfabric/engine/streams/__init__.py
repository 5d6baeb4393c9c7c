"""Streams: what attempts put out while they run; frames in order, and a summary."""

from flowfabric.engine.streams.append import append_frame, append_frames
from flowfabric.engine.streams.read import find_valid_frames, read_frames, tail_frames
from flowfabric.engine.streams.retention import trim_frames
from flowfabric.engine.streams.summary import read_summary

__all__ = [
    "append_frame",
    "append_frames",
    "find_valid_frames",
    "read_frames",
    "read_summary",
    "tail_frames",
    "trim_frames",
]
