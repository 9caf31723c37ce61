"""Cgroups of a Kubernetes node as the kernel shows them, for what a real tree on the test's machine cannot show.

`kernel` has the groups and the rules of both versions, `kubelet` makes and changes pods as kubelet and runtime do,
`tree` and `proc` are what programs read and write, `mounting` shows that as a file system. CPU time is computed from
demands and limits whenever time is advanced. Left out, because the agent never uses it: other controllers than cpu
and cpuacct, and moving processes."""
