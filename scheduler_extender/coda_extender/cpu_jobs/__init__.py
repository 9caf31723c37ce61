"""Carries out what the planner decides about CPU jobs: their pods are released, and evicted.

Read `pod_writer` (what a cycle decided), `pod_reasons` (why the others wait), then `stuck_pods` (released pods that
cannot be bound).
"""
