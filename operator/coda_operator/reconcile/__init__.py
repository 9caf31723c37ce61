"""One job, one step: read, decide in the core, write. Read `reconciler` first."""
