"""The slots of a job: `slot.py` defines slots and slot sharing groups, `pool.py` keeps those that
the job has and still needs, `wait.py` measures how long it has been waiting for them.
"""
