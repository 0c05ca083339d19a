"""One scheduler, two executors: settings, the compiled core, the simulator, the recorder."""

VERSION = "0.1.0"
