"""Analysis: every operator's schema, and what is wrong with a program, found before data flows."""
