"""A user's training script, with nothing of Coda in it. It prints `running` once it trains, and JSON when it ends.

Usage: python job.py MODEL --seconds S | --steps N [--idle MS] [--hold GIB] [--loader CORES]
    [--same] [--union] [--compile]
--idle: milliseconds of the CPU before each mini-batch; --hold: GPU memory that is not used
--loader: processes that prepare batches, and need so many cores to keep the GPU busy
--same: deterministic algorithms, and every loss is printed
--union: the share of the time in which kernels run, by torch's profiler, after the run"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

MIB = 2**20
WARM_UP = 5  # mini-batches
Step = Callable[[], Tensor]


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al. 2016)."""

    def __init__(self, inside: int, middle: int, stride: int) -> None:
        super().__init__()
        outside = 4 * middle
        self.way = nn.Sequential(
            nn.Conv2d(inside, middle, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.short = short if stride > 1 or inside != outside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        return torch.relu(self.way(x) + self.short(x))


class Slices(nn.Module):
    """Elementwise layers: their activations are nearly all of the memory."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1024)) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """Layer by layer."""
        for scale in self.scales:
            x = torch.relu(x * scale)
        return x


class Recurrent(nn.Module):
    """A cell per time step, as speech recognition has: many short kernels (AntMan's ESPnet)."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(320, 320)
        self.last = nn.Linear(320, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Time first."""
        h = c = torch.zeros(x.shape[1], 320, device=x.device)
        for one in x:
            h, c = self.cell(one, (h, c))
        return self.last(h)


class Prepared(torch.utils.data.Dataset[int]):
    """Batches that take a worker so much CPU time each."""

    def __init__(self, cpu_s: float) -> None:
        self._cpu_s = cpu_s

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        end_s = time.process_time() + self._cpu_s
        while time.process_time() < end_s:
            pass
        return index


def resnet50() -> nn.Module:
    """50 layers for pictures of 224 pixels."""
    blocks: list[nn.Module] = []
    inside = 64
    for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for at in range(count):
            blocks.append(Bottleneck(inside, middle, stride if at == 0 else 1))
            inside = 4 * middle
    first = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*first, *blocks, nn.AvgPool2d(7), nn.Flatten(), nn.Linear(2048, 1000))


def vgg() -> nn.Module:
    """Large convolutions: few long kernels of cuDNN."""
    layers: list[nn.Module] = []
    inside = 3
    for outside in (64, 128, 256, 512, 512):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        inside = outside
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 49, 1000))


def gpt(width: int = 768, layers: int = 12) -> nn.Module:
    """A transformer: mostly products of matrices, by cuBLAS."""
    layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, 1000))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (resnet50, (64, 3, 224, 224)),
    "vgg": (vgg, (64, 3, 224, 224)),
    "gpt": (gpt, (16, 512, 768)),
    "lstm": (Recurrent, (200, 32, 320)),
    "slices": (lambda: Slices(64), (65536, 1024)),  # each layer keeps 256 MiB
    "fill": (lambda: Slices(int(0.92 * torch.cuda.mem_get_info()[0]) // (256 * MIB)), (65536, 1024)),
    "tiny": (lambda: Slices(4), (64, 1024)),  # what launches cost
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--idle", type=float, default=0.0)
    parser.add_argument("--hold", type=int, default=0)
    parser.add_argument("--loader", type=float, default=0.0)
    for flag in ("--same", "--union", "--compile"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    torch.manual_seed(7)
    held = torch.empty(options.hold * 1024, MIB, dtype=torch.uint8, device="cuda")
    if options.same:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # its gradients are not the same twice
    make, shape = MODELS[options.model]
    step = trained(make().cuda(), torch.randn(*shape, device="cuda"), compiled=options.compile)
    batches = prepared(step, options.loader) if options.loader else repeat(0)
    losses: list[float] = []
    ended_s: list[float] = []
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_end.append(number))
    began_s = time.monotonic()
    while len(ended_s) < options.steps and time.monotonic() - began_s < options.seconds and not asked_to_end:
        time.sleep(options.idle / 1000)
        next(batches)
        losses.append(step().item())
        ended_s.append(time.monotonic())
        if len(ended_s) == WARM_UP:
            print("running", flush=True)
    del held
    found: dict[str, Any] = {"began_s": began_s, "ended_s": ended_s}
    found |= {"losses": losses if options.same else losses[-1:], "peak": torch.cuda.max_memory_allocated()}
    if options.union:
        found["union"] = kernels_union(step, options.idle / 1000)
    print(json.dumps(found))


def trained(model: nn.Module, x: Tensor, *, compiled: bool) -> Step:
    """A mini-batch on the same input each time."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    forward = torch.compile(model) if compiled else model

    def step() -> Tensor:
        loss: Tensor = forward(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def prepared(step: Step, cores: float) -> Iterator[object]:
    """Batches that need so many cores, by how long this GPU takes for a mini-batch."""
    took_s = []
    for _ in range(20):
        began_s = time.monotonic()
        step().item()
        took_s.append(time.monotonic() - began_s)
    data = Prepared(cores * sorted(took_s)[10])
    return iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=14))


def kernels_union(step: Step, idle_s: float) -> float:
    """The share of ten mini-batches in which at least one kernel or copy runs."""
    from torch.profiler import ProfilerActivity, profile

    def run(count: int) -> float:
        began_s = time.monotonic()
        for _ in range(count):
            time.sleep(idle_s)
            step().item()
        return time.monotonic() - began_s

    run(3)
    wall_s = run(10)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run(10)
    spans = sorted(
        (event.time_range.start, event.time_range.end) for event in seen.events() if "CUDA" in str(event.device_type)
    )
    busy_us, until = 0.0, 0.0
    for start, end in spans:
        busy_us += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy_us / 1e6 / wall_s  # of a run that nobody watched: profiling slows the CPU


if __name__ == "__main__":
    main()
