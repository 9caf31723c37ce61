"""The cluster as the extender sees it, from watches. Nothing is decided here."""
