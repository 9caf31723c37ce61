"""Coda's dashboards. `python -m deploy.dashboards` (`make dashboards`) writes them into the chart as Grafana's JSON.

Read `boards` (what a dashboard is made of), then `cluster`, `queues`, `job`, `node` and `coda_itself`, the dashboards
themselves. `grafana` alone knows Grafana.
"""
