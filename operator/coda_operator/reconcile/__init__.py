"""One step of one job: read, decide in `coda.lifecycle`, write.

Nothing is decided here, and every write may be repeated. Read `reconciler` first. `acceptance` asks what a rank is;
`gang_pods` and `job_writer` write; `pod_spec`, `status` and `events` say what is written, as JSON. `request_slots` and
`api_refusals` are about the API server: how many requests at once, and what its refusals mean.
"""

from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.ownerless_pods import OwnerlessPods
from coda_operator.reconcile.reconciler import Reconciler
from coda_operator.reconcile.request_slots import RequestSlots

__all__ = ["OwnerlessPods", "Reconciler", "Recorder", "RequestSlots"]
