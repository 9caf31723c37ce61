"""A load of gangs and foreign pods for a local cluster, how it is kept up, and what became of each of them.

`plans` says what is submitted, pure functions of a seed; `driving` submits it, `following` watches it, `account` knows
every end; `display` and `commanding` are what the programs that run such a load (`chaos`, `race`) show and say. What
must not live here: faults, and what a run is for.
"""
