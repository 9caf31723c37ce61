"""Alembic's migrations of the store: `versions`, oldest first. A version that was released is never edited.

An older operator writes what a newer one has left, if its own tables and columns are there and the others need no value
(`store`). So a column whose meaning changes gets another name.
"""
