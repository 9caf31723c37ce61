"""`coda simulate`: runs, comparison, plots and report."""
