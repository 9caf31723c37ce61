"""The rules that differ between policies, as pure functions. Nothing here remembers a job or searches a node.

Read `order`, `fair_share`, `arrays` and `preemption`, then `policies`: the table of all policies. `config` is what an
installation may set.
"""
