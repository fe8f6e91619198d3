"""exp, log, tanh, erf, sigmoid, sin, cos and pow in basic arithmetic, with their error bounds.

Own the polynomials. Must not depend on a device's own functions.
"""
