"""Windows and running aggregates: grouping, partials, panes, sessions."""
