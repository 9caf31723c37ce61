"""The pages of docs/reference, made from the code: `make reference`. A test compares them.

Read `pages` (which there are), then `fields`, `settings`, `commands` and `events`, each of which makes one.
"""
