"""The cgroups of pods: where they are, their CPU time, and their CPU limits. It does not decide what to lower.

Read `identity` (names to pods), `layout` (directories), `threads`, `usage`, then `quota` (limits as values) and
`limits` (reads and writes them)."""
