"""Translates a program to its JobGraph: specs of operators, the stream graph, chaining."""
