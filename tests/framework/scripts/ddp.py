"""Two ranks of DistributedDataParallel over gloo, started by torchrun; a GPU each."""

import json
import os
import sys
import time

import torch
import torch.distributed

rank = int(os.environ["LOCAL_RANK"])
torch.distributed.init_process_group("gloo")
torch.cuda.set_device(rank)
weight = torch.nn.Parameter(torch.ones(8, 8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
began, steps = time.monotonic(), 0
while True:
    (torch.ones(8, 8, device="cuda") * weight).sum().backward()
    gradient = torch.full((8,), float(rank))  # on the CPU: kernels compute nothing here
    torch.distributed.all_reduce(gradient)
    assert gradient[0] == 1
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    stop = torch.tensor([time.monotonic() - began >= float(sys.argv[1])])
    torch.distributed.broadcast(stop, 0)
    if stop[0]:
        break
torch.distributed.destroy_process_group()
if rank == 0:
    print(json.dumps(steps))
