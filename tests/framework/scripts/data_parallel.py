"""Training by DistributedDataParallel as torch's tutorial has it. It takes its world from torch's own variables."""

import json

import torch
from torch.distributed import all_reduce, destroy_process_group, get_rank, get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

init_process_group("gloo")
torch.manual_seed(1)
inputs = torch.randn(256, 4)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(5):
    sampler.set_epoch(epoch)
    for batch, wanted in DataLoader(data, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), wanted)
        loss.backward()
        optimizer.step()
    mean = loss.detach().clone()
    all_reduce(mean)
    losses.append(float(mean) / get_world_size())
if get_rank() == 0:
    print(json.dumps({"ranks": get_world_size(), "rows": len(sampler), "losses": losses}))
destroy_process_group()
