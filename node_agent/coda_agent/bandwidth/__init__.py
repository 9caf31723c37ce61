"""Memory bandwidth beyond reading it: the peak that everything is a share of, and holding pods below a limit.

What must not live here: the resctrl file system (`resctrl`), and when to limit whom (the core)."""
