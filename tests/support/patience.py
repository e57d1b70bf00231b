"""How long tests wait for what must come soon."""

NOISE_S = 2.0
"""What a machine that does other work too may add to anything that is timed by the clock on the wall.

A limit with this on top still tells "at once" from "when the time-out comes": choose time-outs longer.
"""
