"""Calls of coroutine functions, many at a time: `map_async` (Flink's AsyncWaitOperator)."""
