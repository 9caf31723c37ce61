"""The whole agent on an emulated node."""

from coda_lab.emulators.agent import Api, Rig

__all__ = ["Api", "Rig"]
