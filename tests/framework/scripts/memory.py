"""A user's training script whose memory is known: 208 MiB stay, 486 MiB at its peak. Argument: seconds."""

import json
import sys
import time

import torch


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(1024, 1024))

    def forward(self, x):
        return torch.relu(x * self.w[0])


model = torch.nn.Sequential(*[Wide() for _ in range(16)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.empty(4096, 1024, device="cuda")
began = time.monotonic()
while time.monotonic() - began < float(sys.argv[1]):
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
print(json.dumps({"free": torch.cuda.mem_get_info()[0], "peak": torch.cuda.max_memory_allocated()}))
