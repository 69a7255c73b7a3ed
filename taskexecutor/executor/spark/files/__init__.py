"""Files that plans read: their DataFrames, their parts, and plans cached for them."""
