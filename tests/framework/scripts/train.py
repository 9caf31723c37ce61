"""A user's training script: nothing of Coda. Arguments: seconds, layers, milliseconds of the CPU before each step."""

import json
import statistics
import sys
import time

import torch

seconds, layers, load_s = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000
quiet_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0  # what is not counted, at the start


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(64, 64))

    def forward(self, x):
        return torch.relu(x * self.w[0])


model = torch.nn.Sequential(*[Scale() for _ in range(layers)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.empty(32, 64, device="cuda")
began, took = time.monotonic(), []
while time.monotonic() - began < seconds:
    step = time.monotonic()
    time.sleep(load_s)
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    if step - began > quiet_s:
        took.append(time.monotonic() - step)
print(json.dumps({"steps": len(took), "median_s": statistics.median(took), "per_s": len(took) / (seconds - quiet_s)}))
