"""What is read when an attempt has failed by its own fault, before `coda.lifecycle` decides: logs, and what memory a
rank had and may have."""
