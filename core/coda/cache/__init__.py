"""What one cycle leaves for the next. It saves time and changes no answer.

Read `world_index` last: it keeps the others up to date with the world.
"""
