"""Coda's container images without Docker: Debian's Python, the locked wheels and Coda's sources, as an OCI archive.

What runs in a container is what deploy/Dockerfile says. Read `oci_archive` (layers to an archive), then `image`
(the layers of a part's image) and `bill_of_materials`. `python -m coda_lab.images` writes one.
"""
