"""Finds the lines of one job in the logs of many processes.

`tail` reads one log while it grows and starts over; `lines` finds a job's lines in it; `merge`
orders the lines of many logs by time; `reader` does all of that for one service's logs.
"""
