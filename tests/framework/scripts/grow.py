"""argv: MiB at first, MiB later, seconds until then, seconds after. A training loop whose batch grows. It says
when it has trained for a second."""

import json
import signal
import sys
import time

import torch

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
first, later, until_s, after_s = map(float, sys.argv[1:5])
weight = torch.nn.Parameter(torch.empty(1024, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
began_s, longest_s, steps = time.monotonic(), 0.0, 0
while (now_s := time.monotonic() - began_s) < until_s + after_s:
    activations = torch.empty(int(first if now_s < until_s else later) * 262144, device="cuda")
    longest_s = max(longest_s, time.monotonic() - began_s - now_s)
    optimizer.zero_grad()
    (weight * 2).sum().backward()
    optimizer.step()
    del activations
    steps += 1
    if steps == 20:
        print("trains", flush=True)
    time.sleep(0.05)
print(json.dumps({"longest_s": longest_s}))
