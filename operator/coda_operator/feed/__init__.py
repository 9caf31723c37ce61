"""kopf: it feeds changed jobs to the work queue. Nothing is read or decided here."""
