"""Runs PySpark programs: a front for Spark Connect, and a planner that makes Firesteel jobs of
streaming queries.
"""
