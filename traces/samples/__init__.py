"""Sample workloads that come with the project, shaped after published figures of real traces.

`load(name)` makes one from its seed, `draw(name, n)` others of its kind; `info(name)` says which figures it follows, where it departs
from them, and on which pool it shows pressure. No row of any real trace is in here.
"""

from traces.samples.workloads import SampleInfo, draw, info, load, names

__all__ = ["SampleInfo", "draw", "info", "load", "names"]
