"""Leader election in ZooKeeper: the nodes, the contenders and the clients that look for leaders.

Below `high-availability.zookeeper.path.root`, for each cluster:

    <cluster-id>/job_store                        the id of its job store; a process with another id
                                                  belongs to another cluster
    <cluster-id>/epoch/<office>                   the epoch of the last leader
    <cluster-id>/leader/<office>/connection_info  its address and epoch, as JSON; ephemeral

The last node is the office: the process that created it leads until its session ends.
"""
