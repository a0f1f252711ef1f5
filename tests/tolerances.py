"""Every tolerance of the test suite, in one place. A test that needs another one has found something."""

EXACT = 1e-12  # the same algebra in another order, relative
LONG = 1e-10  # the same algebra accumulated over many rows or rounds, relative
ITERATES = 1e-9  # iterates of two implementations of one algorithm after hundreds of rounds, relative
ITERATIVE = 1e-8  # a point that an iterative method stops at, relative
STANDARD_ERRORS = 4.0  # Monte-Carlo claims, in standard errors of the mean (seeds are fixed)
