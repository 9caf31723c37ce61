"""Cgroups of a Kubernetes node as the kernel shows them, for cases that a real tree on the test's machine cannot show.

CPU time is computed from demands and limits whenever time advances. Left out, because the agent never uses them:
controllers other than cpu and cpuacct, and moving processes. Read `kernel` (the groups and the rules of both versions),
`kubelet` (makes and changes pods as kubelet and runtime do), `tree` and `proc` (the files), then `file_access` (these
files in place of the agent's own).
"""
