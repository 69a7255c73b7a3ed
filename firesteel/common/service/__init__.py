"""What each service is made of: a core, the driver that runs it, and the process around both."""
