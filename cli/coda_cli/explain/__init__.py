"""`coda queue` and `coda explain`: who waits, why, and what can be done. They read the API server only.

Read `waiting` (objects to lines), `advice` (what can be done), then the two commands.
"""
