"""Alembic's migrations of the store: `versions`, oldest first. A version that was released is never edited."""
