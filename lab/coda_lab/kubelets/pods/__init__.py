"""The pods of simulated kubelets on the wire. The rules of a pod's life are not here: see `coda_lab.kubelets.machine`.

Read `reader` (JSON to pod), `statuses` (pod to status patch), `status_writer` (writes it); `gang_start_times`, `logs`
and `log_server` answer single questions.
"""
