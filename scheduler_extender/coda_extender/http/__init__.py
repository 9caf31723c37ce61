"""kube-scheduler's two calls over HTTP, bounded in size, time and number."""
