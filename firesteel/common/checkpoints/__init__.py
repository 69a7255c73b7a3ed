"""What a checkpoint consists of, and where it is kept."""
