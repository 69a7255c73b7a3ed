"""Apache Kafka for tests and benchmarks: real brokers, and an independent client."""
