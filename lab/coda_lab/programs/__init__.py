"""Programs that are built once per machine and version, and stay in the user's cache.

Read `cache` (where a program lies), `go_build` (how one is compiled), then `control_plane` and `helm`, the programs
themselves. `go_toolchain` finds or installs Go, and `progress` shows a build. `compiled_core` builds Coda's own core,
and `prometheus` fetches Debian's. Nothing here starts a cluster.
"""
