"""The slots of a job: `slot.py` says what a slot and a slot sharing group are, `pool.py` which
slots the job has and still needs, `wait.py` how long it has been waiting for them.
"""
