"""What `ClusterState` is made of, beside the objects as they are read.

Ranks by their pods (`gang_pods`), what was written and is not seen yet (`job_assumptions`), attempts that were told to
stop (`stopped_attempts`), times of other clocks (`local_times`), who has which GPU whole (`node_gpus`),
what pods ask for (`node_use`), and nodes that lack devices for a moment (`short_nodes`)."""
