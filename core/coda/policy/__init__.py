"""The rules that differ between policies, as pure functions.

Nothing here stores a job or searches nodes. Read `order` (who goes first), `fair_share`, `node_score`, `cores` (how
many cores a job starts with), `arrays` and `preemption`, then `policies`: the table of all policies. `config` has what
an installation may set.
"""
