"""What is read when an attempt has failed by its own fault, before `coda.lifecycle` decides: logs, and what memory a
rank had and may have; and while a rank is not created, which of its claims may keep it from that."""
