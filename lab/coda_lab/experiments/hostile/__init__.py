"""Objects that no honest user would store, stored by a plain user in a running cluster, beside honest jobs.

`python -m coda_lab.experiments.hostile` (`make hostile`) runs it: the same honest jobs twice, first beside harmless
objects, then beside hostile ones, and compares. Read `kinds` (a harmless object of each kind), `schema` (values drawn
from the OpenAPI schema), `nastiness` (every class of hostile object), `generator`, `sender`, `honest` (the jobs beside
them), `measures`, `run`, then `report`.
"""
