"""Who may hold how much, and what is held: VirtualClusters, ArrayQuotas, and the sums of each array."""
