"""The parts of every service: a core, the loop that runs it, and the process around both."""
