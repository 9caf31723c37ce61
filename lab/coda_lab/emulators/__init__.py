"""Stand-ins for hardware that a development machine lacks, with the rules of the real thing.

Each emulator answers through the same door as the original (a mounted file system, a C library, a socket), so the
agent's own code runs unchanged. What must not live here: anything the agent imports, and any decision of Coda's."""
