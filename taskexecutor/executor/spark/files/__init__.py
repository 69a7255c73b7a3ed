"""Files that plans read: their frames, their parts, and plans kept over them."""
