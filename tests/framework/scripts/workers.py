"""DataLoader workers, forked and spawned, beside a model on the GPU."""

import json

import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))


if __name__ == "__main__":
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context=method)
        for batch in loader:
            (batch.cuda() * model.weight[0]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += len(batch)
    print(json.dumps(seen))
