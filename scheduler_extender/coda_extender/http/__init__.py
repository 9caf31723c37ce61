"""kube-scheduler's two calls over HTTP, limited in size, time and number.

No verdict is made here: `guard` makes them. Read `app`, `endpoints`, `connections`, `joined_writes`.
"""
