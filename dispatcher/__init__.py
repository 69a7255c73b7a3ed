"""The Dispatcher: accepts and stores jobs, assigns each a JobMaster process, and answers clients
(spec 003).
"""
