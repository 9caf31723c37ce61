"""`coda replay`: a trace submitted to a control plane, and what became of it."""
