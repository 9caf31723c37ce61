"""`coda demo`: a story of what Coda does, or example jobs, on a local control plane.

The story: `story_objects` (what is submitted), `story` (its acts), `story_command` (the cluster). The examples:
`examples` (the files), `job_table` (what is shown). Then `command`.
"""
