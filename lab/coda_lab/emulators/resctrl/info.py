"""The tree below `info/`: the abilities of the hardware, and the result of the last command."""

from __future__ import annotations

from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.profiles import Cache, Limiting, Monitoring

Branch = dict[str, "Branch | str | None"]  # a directory; None: a file whose text depends on the group


def info_of(machine: Machine) -> Branch:
    """The directory `info`."""
    profile = machine.profile
    files: Branch = {"last_cmd_status": machine.status + "\n"}
    if profile.cache is not None:
        files["L3"] = _cache(profile.cache)
    if profile.limiting is not None:
        files["MB"] = _limiting(profile.limiting)
    if profile.monitoring is not None:
        files["L3_MON"] = _monitoring(profile.monitoring, machine)
    return files


def _cache(cache: Cache) -> Branch:
    return {"num_closids": f"{cache.closids}\n", "cbm_mask": f"{cache.mask:x}\n", "min_cbm_bits": "1\n"}


def _limiting(limiting: Limiting) -> Branch:
    files: Branch = {
        "num_closids": f"{limiting.closids}\n",
        "min_bandwidth": f"{limiting.least}\n",
        "bandwidth_gran": f"{limiting.granularity}\n",
        "delay_linear": f"{int(limiting.linear)}\n",
    }
    if limiting.thread_throttle_mode is not None:
        files["thread_throttle_mode"] = limiting.thread_throttle_mode + "\n"
    return files


def _monitoring(monitoring: Monitoring, machine: Machine) -> Branch:
    domains = machine.profile.domains
    files: Branch = {
        "num_rmids": f"{monitoring.rmids}\n",
        "mon_features": "".join(f"{event}\n" for event in monitoring.events),
        "max_threshold_occupancy": "65536\n",
    }
    if monitoring.counters is not None:
        files |= {
            "mbm_assign_mode": "[mbm_event]\ndefault\n",
            "num_mbm_cntrs": ";".join(f"{domain}={monitoring.counters}" for domain in domains) + "\n",
            "available_mbm_cntrs": ";".join(f"{domain}={machine.counters.free(domain)}" for domain in domains) + "\n",
            "mbm_assign_on_mkdir": "1\n",
        }
    return files
