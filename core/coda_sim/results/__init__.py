"""What a run is measured by, and the files that say so. Nothing here runs anything."""
