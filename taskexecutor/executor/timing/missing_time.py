"""The error about rows without event time in a window."""

IS_NULL = "is null in some rows"  # part of every such error


def missing_time(column: str) -> str:
    return (
        f"event time column '{column}' {IS_NULL};"
        " drop them or give them a time before the window."
        " Rows of CSV and JSON files that do not fit the schema have nulls unless"
        ' FileSource(malformed="drop"), "side_output" or "fail" says otherwise'
    )
