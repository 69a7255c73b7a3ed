"""Leader election with Leases of Kubernetes: one Lease for each office of a cluster.

lease.py        the content of a Lease
core.py         decides when to take, renew and recreate it
offices.py      the names of the Leases, and the durations, as they are configured
permissions.py  the permissions that masters need
contender.py    sends the requests of the core, and informs the service
leaders.py      follows the leaders, for services
finder.py       finds the leader, for clients
"""
