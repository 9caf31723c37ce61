"""An emulated resctrl: the kernel's rules for memory bandwidth in a mounted file system, on invented hardware.

`Machine` in `machine` is hardware, kernel and tasks with time that only moves when told; `mounted` in `mounting` puts
it behind a FUSE mount, so a program under test reads and writes real files; `python -m coda_lab.emulators.resctrl` is
the same as a process with a control socket. `profiles` has the hardware. What must not live here: GPUs, cgroups, and
anything of the agent. Source of the rules: kernel `Documentation/filesystems/resctrl.rst`, `fs/resctrl`."""
