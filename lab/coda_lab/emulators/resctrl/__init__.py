"""An emulated resctrl: the kernel's rules for memory bandwidth in a mounted file system, on invented hardware.

GPUs, cgroups and the agent are not here. Source of the rules: kernel `Documentation/filesystems/resctrl.rst`,
`fs/resctrl`. Read `profiles` (the hardware), `machine` with `ids`, `tasks`, `schemata`, `counting` and `traffic`
(hardware, kernel and threads, with time that moves only when told), `tree` and `info` (the files), then `mounting`
(behind a FUSE mount, so a program reads and writes real files). `python -m coda_lab.emulators.resctrl` is the same as a
process, with a `control` socket.
"""
