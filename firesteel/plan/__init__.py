"""From a program to its JobGraph: operator specs, the stream graph, chaining."""
