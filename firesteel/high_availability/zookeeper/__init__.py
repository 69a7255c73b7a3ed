"""Leader election in ZooKeeper: the nodes, the contenders and the clients that look for leaders.

Below `high-availability.zookeeper.path.root`, for each cluster:

    <cluster-id>/job_store                        the id of its job store; a process with another id
                                                  belongs to another cluster
    <cluster-id>/epoch/<office>                   the epoch of the last leader
    <cluster-id>/leader/<office>/connection_info  its address and epoch, as JSON; ephemeral
    <cluster-id>/standby/<office>/<address>@<id>  a contender that has found the office occupied,
                                                  with its session; ephemeral, stays if it leads

The process that created `connection_info` holds the office, and leads until its session ends.
"""
