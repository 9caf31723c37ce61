from tests.rigs import emulate as emulate
from tests.rigs import intel as intel
from tests.rigs import needs_fuse as needs_fuse
from tests.rigs import needs_gcc as needs_gcc
from tests.rigs import needs_root as needs_root
