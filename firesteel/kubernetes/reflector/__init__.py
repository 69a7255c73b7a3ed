"""Reflectors: the current objects of a resource, followed by a list and a watch.

core.py       decides when to list, watch and give up; pure
reflector.py  sends the requests, and has the snapshot for readers
"""
