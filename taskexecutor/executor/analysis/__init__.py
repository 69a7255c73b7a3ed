"""Analysis: finds every operator's schema and the errors of a program before data flows."""
