"""A job as the pod of its trial is made from it: one rank, one GPU, on the nodes that the platform keeps for trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda.lifecycle import Progress
from coda.model.trial_run import TRIAL_TAINT
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.trial_spec import TRIAL_VARIABLE, tried_spec

Item = Mapping[str, Any]


def job_for(job: Json, progress: Progress, node_selector: Mapping[str, str]) -> Json:
    """Return the job from which pods of the attempt in `progress` are made: itself, or that of its trial.

    `node_selector`: the nodes for trials. Where the user's own selector names the same label, the user's counts."""
    if not progress.is_tried:
        return job
    spec = tried_spec(job["spec"], progress.cores_multiple)
    template = spec["template"]
    pod = template["spec"]
    main, *others = pod["containers"]
    variable = {"name": TRIAL_VARIABLE, "value": "1"}
    env = [entry for entry in main.get("env") or () if entry.get("name") != TRIAL_VARIABLE]
    tried_pod = pod | {
        "containers": [main | {"env": [variable, *env]}, *others],
        "tolerations": [*(pod.get("tolerations") or ()), {"key": TRIAL_TAINT, "operator": "Exists"}],
    }
    if node_selector:
        tried_pod["nodeSelector"] = dict(node_selector) | (pod.get("nodeSelector") or {})
    return job | {"spec": dict(spec) | {"template": template | {"spec": tried_pod}}}
