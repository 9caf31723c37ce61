"""The command line: `coda`. One module per command, each thin; what a command does lives in the parts it calls."""
