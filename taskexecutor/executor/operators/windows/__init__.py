"""Windows: assignment of rows to windows, firing, and contents."""
