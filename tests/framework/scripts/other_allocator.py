"""As train.py, with another allocator in place of torch's, as RMM's is."""

from pathlib import Path

import torch

torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free"))
train = Path(__file__).with_name("train.py")
exec(compile(train.read_text(), train, "exec"))
