"""Sample workloads that come with the project, shaped after published figures of real traces.

`load(name)` makes one from its seed; `info(name)` says which figures it follows, where it departs
from them, and on which pool it shows pressure. No row of any real trace is in here.
"""

from traces.samples.workloads import SampleInfo, info, load, names

__all__ = ["SampleInfo", "info", "load", "names"]
