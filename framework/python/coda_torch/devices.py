"""Which GPU a device of torch is, by the name that the agent uses for it."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Mapping


def gpu_name(torch: Any, device: int, environ: Mapping[str, str] = os.environ) -> str:
    """The UUID, with "GPU-" in front; "" if nobody tells. CUDA is initialized.

    Torch tells it since 2.5, the driver since CUDA 9.2; else it is the one GPU that the container has."""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) or _told_by_the_driver(device)
    if not uuid and torch.cuda.device_count() == 1:
        uuid = environ.get("NVIDIA_VISIBLE_DEVICES", "")
        return uuid if uuid.startswith("GPU-") and "," not in uuid else ""
    return "GPU-" + uuid if uuid and not uuid.startswith("GPU-") else uuid


def _told_by_the_driver(device: int) -> str:
    """It numbers devices as the runtime does."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        get, get_uuid = driver.cuDeviceGet, driver.cuDeviceGetUuid
    except (OSError, AttributeError):
        return ""
    handle, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if get(ctypes.byref(handle), ctypes.c_int(device)) or get_uuid(found, handle) or not any(found):
        return ""
    digits = bytes(found).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
