"""The whole agent on an emulated node."""

from coda_lab.emulators.agent_rig import Api, Rig

__all__ = ["Api", "Rig"]
