"""Decides which jobs exist and which JobMaster process serves which job. No I/O, no clock."""
