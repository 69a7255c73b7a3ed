"""The slots of a job: `slot.py` defines slots and slot sharing groups, `pool.py` manages the slots
that the job holds and requires, `wait.py` measures how long it has been waiting for slots.
"""
