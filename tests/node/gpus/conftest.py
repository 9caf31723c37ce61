from tests.node.gpus.rig import state as state
