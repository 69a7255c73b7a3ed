"""The Dispatcher: accepts jobs, stores them, gives each its JobMaster process, and answers clients
(spec 003).
"""
