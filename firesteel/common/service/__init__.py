"""The parts of every service: a core, the driver that runs it, and the process around both."""
