from tests.agent.gpus.rig import state as state
