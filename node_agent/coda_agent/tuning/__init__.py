"""The tuning of this node's jobs: windows of samples in, `status.tuning` out. The search is `coda.allocator`."""
