"""Trains on the CPU and keeps all of it on the GPU in between: a lost byte changes the losses. Argument: steps."""

import json
import sys

import torch

torch.manual_seed(7)
model = torch.nn.Sequential(*[torch.nn.Linear(192, 192) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x = torch.randn(2048, 192)
losses = []
with torch.autograd.graph.saved_tensors_hooks(lambda one: one.to("cuda"), lambda one: one.to("cpu")):
    for _ in range(int(sys.argv[1])):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for p in model.parameters():  # weights and the optimizer's state lie there too
            p.data = p.data.to("cuda").to("cpu")
            state = optimizer.state[p]
            state["momentum_buffer"] = state["momentum_buffer"].to("cuda").to("cpu")
        losses.append(loss.item())
print(json.dumps(losses))
