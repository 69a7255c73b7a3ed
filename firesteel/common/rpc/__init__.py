"""gRPC, shared by all services: servers with health and reflection, channels with sane limits,
message conversion.
"""

import os

# What fails is raised. gRPC's own lines on standard error, such as a poller's when a process is
# started beside it, only disturb what a command prints. It reads this when it is first used.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
