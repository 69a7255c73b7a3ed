"""Random programs on random tables: Firesteel beside Spark's own batch engine.

`case.py` draws a case from a seed, `tables.py` draws and writes its files, `queries.py` has the steps
that both engines run, `compare.py` compares their results, and `run.py` runs many seeds:

    make fuzz COUNT=200       the next seed is one higher
    make fuzz SEED=17         one seed, which a failure prints
"""
