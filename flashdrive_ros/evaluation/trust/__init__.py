"""
What the drive node withstands, measured over real DDS: faults, a soak, its own overhead.

`car` publishes and listens, `rig` runs the node as a process beside it, `faults` breaks things
one after another, `soak` and `overhead` count and time.  The engine is either a real model or
`engine_double`, an engine of known behaviour that can be told to fail.
"""
