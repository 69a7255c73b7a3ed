"""Concurrent calls of coroutine functions: `map_async` (Flink's AsyncWaitOperator)."""
