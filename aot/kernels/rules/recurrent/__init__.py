"""The lowering rule of recurrent layers: a loop over steps, with lanes along the gates.

Must not be asked of a region without one.
"""
