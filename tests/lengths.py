"""How long some tests are. `make test` runs their short version, `make verify` the long one (CODA_LONG=1)."""

from __future__ import annotations

import os

LONG = os.environ.get("CODA_LONG") == "1"
