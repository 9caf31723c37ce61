"""This process as a job on shared GPUs: what happens at the end of a mini-batch, and what an order changes."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from typing import Any

from coda_torch.devices import gpu_name
from coda_torch.hooks import put_into
from coda_torch.injection import say
from coda_torch.library import ALL_DEVICES, DEVICES, FULL_SHARE, Library
from coda_torch.link import Link
from coda_torch.memory import DeviceUse, Memory
from coda_torch.neighbours import Neighbours
from coda_torch.orders import PROTOCOL, Order, first_order, order_from
from coda_torch.steps import StepClock, rest

REPORT_S, BEAT_S = 0.5, 5.0
FLOOR_SHARE = 50
"""Thousandths of the speed once nobody watches the job beside us."""

FEW_LAUNCHES, FEW_STEPS = 20, 10
"""So few kernels a step, so many steps long: the code launches past the library, and is paused per step."""

LONGEST_PAUSE_S = 60.0
"""By an order that nobody must renew; by any other, its hold. Our choice: most hold for so long."""


class Job:
    """One process. `join` puts it into torch; from then on nothing here raises into the script."""

    def __init__(self, library: Library | None, path: str) -> None:
        self._library = library
        self._path = path
        self._torch: Any = None
        self._memory: Memory | None = None
        self._neighbours: Neighbours | None = None
        self._link: Link | None = None
        self._forget()

    def _forget(self) -> None:
        """Also in a forked child: a worker of a DataLoader is not the job, and has no GPU."""
        if self._link is not None:
            atexit.unregister(self._link.end)
            self._link.leave()
        self._link = None
        self._clock = StepClock()
        self._orders: dict[int, Order] = {}  # by device, -1: all
        self._uuids: dict[int, str] = {}
        self._waiting: Order | None = None  # its limit is not reached yet
        self._waiting_since_s = 0.0
        self._reported_s = self._told_s = 0.0
        self._seq = 0
        self._few_steps, self._last_launches = 0, 0
        self._by_step = self._library is None
        self._ordered_s = 0.0
        self._is_broken = False
        self._is_nameless = False  # no order can name one of its GPUs

    def join(self, torch: Any) -> None:
        """Put hooks into torch, once. The socket waits until CUDA is used."""
        self._torch = torch
        self._memory = Memory(self._library, torch)
        self._neighbours = Neighbours(self._memory, torch)
        put_into(
            torch,
            backward_begins=lambda: self._guarded(self._backward_begins),
            stepped=self._stepped,
            gradients_gone=lambda: self._guarded(self._gradients_gone),
        )
        os.register_at_fork(after_in_child=self._forget)
        torch.cuda._lazy_call(lambda: self._guarded(self._begin))

    def step_ended(self) -> None:
        """A mini-batch has ended; `coda_torch.step` calls it."""
        self._guarded(self._step)

    # In the script's thread.

    def _guarded(self, do: Any, *values: Any) -> None:
        if self._is_broken:
            return
        try:
            do(*values)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        last = self.let_go()
        kept = "" if last is None else f"; it goes on at {last.share / 10:g} % of its speed"
        say(f"control of this process ends here{kept}: {error!r}")

    def let_go(self) -> Order | None:
        """End all control. Return what a guest keeps: as one that no order reaches; None: no guest, so full speed."""
        last = self._last_word()
        self._is_broken = True
        self._orders = {} if last is None else {ALL_DEVICES: last}
        share, chunk_s = (FULL_SHARE, 0.0) if last is None else (last.share, last.chunk_s)
        with contextlib.suppress(Exception):
            if self._library is not None:
                self._library.pace(ALL_DEVICES, share, 0, chunk_s, 0.0, share)
            if self._link is not None:
                self._link.send({"v": PROTOCOL, "type": "hello", "control": "none"})
        return last

    def _last_word(self) -> Order | None:
        first = first_order(os.environ.get("CODA_SHARE", ""))
        guests = [order for order in (*list(self._orders.values()), first) if order is not None and order.guest]
        if not guests:
            return None
        share = min(FLOOR_SHARE, *(order.share or FLOOR_SHARE for order in guests))
        return guests[0]._replace(gpu="", share=share, hold_s=0.0)

    def _begin(self) -> None:
        """CUDA is there: from now on there is something to control."""
        if self._link is not None:
            return
        first = first_order(os.environ.get("CODA_SHARE", ""))
        if first is not None:
            for device in range(min(DEVICES, self._torch.cuda.device_count())):
                self._set_pace(device, first)
        self._link = Link(self._path, self._greeting, self._obey_packet, lambda: self._guarded(self._idle))
        atexit.register(self._link.end)
        self._link.start()

    def _backward_begins(self) -> None:
        if self._clock.gradients():
            self._gradients_gone()  # whoever cleared them

    def _optimizer_stepped(self, optimizer: Any) -> None:
        if self._link is not None and self._clock.is_boundary(optimizer):
            self._step()

    def _stepped(self, optimizer: Any) -> None:
        if self._is_broken:
            self._pause_blindly()
        else:
            self._guarded(self._optimizer_stepped, optimizer)

    def _pause_blindly(self) -> None:
        """Of a guest that nobody controls any more, and whose launches are not seen: each step counts."""
        if not self._by_step or not self._is_paced():
            return
        try:
            took_s = self._clock.tick()
            if took_s is not None and not self._torch.cuda.is_current_stream_capturing():
                self._pause(took_s)
        except Exception:
            return

    def _gradients_gone(self) -> None:
        if self._link is not None and self._memory is not None:
            self._memory.at_boundary(is_step=False)

    def _step(self) -> None:
        link, memory = self._link, self._memory
        if link is None or memory is None:
            return
        took_s = self._clock.tick()
        if memory.at_boundary(is_step=True):
            self._report_done(memory.uses(at_boundary=True))
        now_s = time.monotonic()
        if now_s - self._reported_s >= REPORT_S or (took_s is not None and self._clock.is_outlier(took_s)):
            self._report(now_s)
        if self._by_step and took_s is not None and not self._torch.cuda.is_current_stream_capturing():
            self._pause(took_s)

    def _report(self, now_s: float) -> None:
        assert self._memory is not None
        assert self._link is not None
        uses = self._memory.uses(at_boundary=True)
        self._reported_s = self._told_s = now_s
        self._seq += 1
        steps = self._clock.take()
        launches = uses[0].launches if uses else 0
        self._look_for_compiled_code(launches - self._last_launches, len(steps))
        self._last_launches = launches
        self._link.send(
            {
                "v": PROTOCOL,
                "type": "steps",
                "seq": self._seq,
                "count": self._clock.count,
                "s": [round(one, 6) for one in steps],
                "control": self._control(),
                "launches": launches,
                "gpus": [self._described(use) for use in uses],
            }
        )

    def _look_for_compiled_code(self, launches: int, steps: int) -> None:
        if self._by_step or not steps or not self._is_paced():
            return
        self._few_steps = self._few_steps + steps if launches < FEW_LAUNCHES * steps else 0
        if self._few_steps >= FEW_STEPS and self._library is not None:
            self._by_step = True
            self._library.pace(ALL_DEVICES, FULL_SHARE, 0, 0.0, 0.0, FULL_SHARE)
            say("kernels are launched past libcodagpu: the process pauses after each mini-batch instead")

    def _pause(self, took_s: float) -> None:
        """After the GPU has done its work: a pause that is filled by queued kernels is none."""
        if self._share() >= FULL_SHARE:
            return
        self._torch.cuda.current_stream().synchronize()
        holds_s = [order.hold_s or LONGEST_PAUSE_S for order in list(self._orders.values())]
        rest(took_s, self._share, max(holds_s, default=LONGEST_PAUSE_S))
        self._clock.restart()

    def _share(self) -> int:
        """The smallest of all GPUs; the floor once nobody has renewed it."""
        shares = [FULL_SHARE]
        for order in list(self._orders.values()):
            held = not order.hold_s or time.monotonic() - self._ordered_s < order.hold_s
            shares.append(order.share if held else FLOOR_SHARE)
        return min(shares)

    def _is_paced(self) -> bool:
        return self._share() < FULL_SHARE

    # In the listener's thread.

    def _greeting(self) -> dict[str, Any]:
        """Also what it has done and holds: an agent that has just started must not lift its limits for lack of it."""
        cuda, memory = self._torch.cuda, self._memory
        uses = [] if self._is_broken or memory is None else memory.uses()
        devices = [self._uuid(device) for device in range(min(DEVICES, cuda.device_count()))]
        if devices and not any(devices) and not self._is_nameless:
            self._is_nameless = True
            say("no order reaches this job, for nobody tells which GPU it has: use torch 2.5 or newer")
        return {
            "v": PROTOCOL,
            "type": "hello",
            "torch": str(self._torch.__version__),
            "rank": os.environ.get("RANK"),
            "local": os.environ.get("LOCAL_RANK"),
            "devices": devices,
            "control": self._control(),
            "count": self._clock.count,
            "gpus": [self._described(use) for use in uses],
        }

    def _obey_packet(self, packet: bytes) -> None:
        try:
            order = order_from(packet)
        except (ValueError, UnicodeDecodeError) as error:
            say(f"an order is not understood: {error}")
            return
        if order is not None:
            self._guarded(self._obey, order)

    def _obey(self, order: Order) -> None:
        assert self._memory is not None
        device = self._index(order.gpu)
        if device is None:
            return
        before = self._orders.get(device)
        self._set_pace(device, order)
        limits = (order.device_bytes, order.host_bytes)
        same = before is not None and limits == (before.device_bytes, before.host_bytes)
        if same and not order.drain:
            return
        self._memory.set_limit(device, order.device_bytes, order.host_bytes)
        self._waiting, self._waiting_since_s = order, self._ordered_s
        self._memory.begin_to_move()
        uses = self._memory.uses()
        if uses:
            self._beat(uses)  # what is left now: the next boundaries show how far the limit is reached
        else:
            self._report_done(uses)

    def _set_pace(self, device: int, order: Order) -> None:
        if device == ALL_DEVICES:
            self._orders.clear()
        self._orders[device] = order
        self._ordered_s = time.monotonic()
        if self._library is not None and not self._by_step:
            self._library.pace(
                device, order.share, order.launches, order.chunk_s, order.hold_s, min(FLOOR_SHARE, order.share or 50)
            )

    def _give_way(self) -> None:
        """To whoever comes onto a GPU while no agent answers."""
        if self._neighbours is None or self._link is None or not self._torch.cuda.is_initialized():
            return
        if self._link.is_up:
            self._neighbours.forget()
            return
        guests = {device: order for device, order in self._orders.items() if order.guest and order.share > FLOOR_SHARE}
        for device in self._neighbours.look() if guests else ():
            order = guests.get(device) or guests.get(ALL_DEVICES)
            if order is not None:
                self._set_pace(device, order._replace(share=FLOOR_SHARE, hold_s=0.0))
                say("somebody else uses the GPU and no agent answers: this job goes on at 5 % of its speed")

    def _idle(self) -> None:
        self._guarded(self._give_way)
        if self._library is not None and self._torch.cuda.is_initialized():
            self._guarded(self._library.tidy)
        now_s = time.monotonic()
        if self._memory is not None and self._link is not None and now_s - self._told_s >= BEAT_S:
            self._beat(self._memory.uses())

    def _beat(self, uses: list[DeviceUse]) -> None:
        assert self._link is not None
        self._told_s = time.monotonic()
        self._seq += 1
        self._link.send(
            {
                "v": PROTOCOL,
                "type": "beat",
                "seq": self._seq,
                "count": self._clock.count,
                "control": self._control(),
                "gpus": [self._described(use) for use in uses],
            }
        )

    # In either.

    def _report_done(self, uses: list[DeviceUse]) -> None:
        """The limit is reached as far as it goes. The agent takes what is held now for what is kept between steps."""
        order, self._waiting = self._waiting, None
        if order is None or self._link is None:
            return
        self._link.send(
            {
                "v": PROTOCOL,
                "type": "done",
                "id": order.id,
                "ms": round(1e3 * (time.monotonic() - self._waiting_since_s), 1),
                "gpus": [self._described(use) for use in uses],
            }
        )

    def _control(self) -> str:
        if self._is_broken or self._is_nameless or self._memory is None:
            return "none"
        if self._memory.by_fraction:
            return "fraction"
        return "step" if self._by_step else "full"

    def _described(self, use: DeviceUse) -> dict[str, Any]:
        floor = {} if use.floor_bytes is None else {"floor": use.floor_bytes}
        return {
            "gpu": self._uuid(use.device),
            "device": use.device_bytes,
            "host": use.host_bytes,
            "reserve": use.reserve_bytes,
            **floor,
            "refusals": use.refusals,
            "busy_ns": use.busy_ns,
            "idle_ns": use.idle_ns,
        }

    def _uuid(self, device: int) -> str:
        known = self._uuids.get(device)
        if known is None:
            known = self._uuids[device] = gpu_name(self._torch, device)
        return known

    def _index(self, gpu: str) -> int | None:
        if not gpu:
            return ALL_DEVICES
        count = min(DEVICES, self._torch.cuda.device_count())
        return next((device for device in range(count) if self._uuid(device) == gpu), None)
