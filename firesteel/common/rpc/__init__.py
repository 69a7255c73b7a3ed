"""gRPC, shared by all services: servers with health and reflection, channels with sane limits,
message conversion.
"""
