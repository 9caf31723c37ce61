"""The part of Coda inside a training process that shares a GPU: it reports mini-batches, and obeys limits and pauses.

`sitecustomize` brings it in; scripts need no change. It may use the standard library only, from Python 3.8 on, and must
never break or slow its host: what fails here says one line on stderr, and the process goes on without control. Read
`injection` (how it gets in), `job` (what happens at a mini-batch), `orders` and `memory` (what it obeys), `link` (the
socket) and `library` (the half in C)."""

from __future__ import annotations


def step() -> None:
    """Say that a mini-batch has ended. Only for loops without an optimizer of torch; harmless elsewhere."""
    from coda_torch.injection import job

    if job is not None:
        job.step_ended()
