"""Runs a Spark program in slots: the driver in one, an executor in each of the others.

They are processes of Spark Standalone: a master and the program beside each other in the driver's
slot, and a worker in each executor's slot, which starts the executor. All of them belong to the
process group of their slot, so that none outlives it.
"""
