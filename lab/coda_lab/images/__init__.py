"""Coda's container images without Docker: Debian's Python, the locked wheels and Coda's sources, as an OCI archive.

What runs in a container is what deploy/Dockerfile says. Read `oci_archive` (layers to an archive), then `agent` (the
layers of the agent's image). `python -m coda_lab.images` writes one.
"""
