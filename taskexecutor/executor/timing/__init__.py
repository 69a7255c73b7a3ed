"""Time in a task: clocks, timers, watermarks and the alignment of watermarks."""
