"""Reports over the history store, and traces that are loaded into it."""
