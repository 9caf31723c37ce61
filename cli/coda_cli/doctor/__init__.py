"""`coda doctor`: is this cluster fit for Coda, and is Coda well in it?

Read `seen` (what is read of the cluster), `findings`, `parts` and `agents` (what it means, as pure functions), then
`command`.
"""
