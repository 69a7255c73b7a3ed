"""The lines of one job, out of the logs of many processes.

`tail` reads one log while it grows and starts over; `lines` finds a job's lines in it; `merge` puts
the lines of many logs in the order of time; `reader` does all of that for one service's logs.
"""
