"""What the agent reports: its NodeProfile, events on pods, and metrics. Nothing is measured or decided here.

Read `node_profile` and `events` (pure: values to JSON), `profile_writer` (when to write), then `metrics`."""
