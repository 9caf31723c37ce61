"""The node's GPUs: what they do (`sensing`), how they are linked (`links`), and whose they are (`owners`).

NVML is the source of the first two, the kubelet's pod-resources socket and the processes on each GPU of the third.
One idea holds everywhere: what was not measured is None or absent, never 0.
"""
