"""What the agent reports: its NodeProfile, events on pods, and metrics. Nothing is measured or decided here.

Read `node_profile` and `events` (pure: values to JSON), `xid_record` and `gpu_uses` (what is remembered),
`profile_writer` (when to write), then `gpu_rows` and `metrics`."""

from coda_agent.report.events import crowded_event_json, events_json
from coda_agent.report.gpu_uses import GpuUse, GpuUses
from coda_agent.report.metrics import LastWindow, Metrics
from coda_agent.report.node_profile import profile_object, with_throttles
from coda_agent.report.profile_writer import ProfileWriter, profile_status
from coda_agent.report.xid_record import XidRecord

__all__ = [
    "GpuUse",
    "GpuUses",
    "LastWindow",
    "Metrics",
    "ProfileWriter",
    "XidRecord",
    "crowded_event_json",
    "events_json",
    "profile_object",
    "profile_status",
    "with_throttles",
]
