"""Time in a task: clocks, timers, watermarks and watermark alignment."""
