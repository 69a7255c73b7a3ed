from firesteel.common.ids import ResultId
from firesteel.common.job_graph import ResultPartitionId, StoredPartition
from firesteel.common.rpc.convert import STORED_PARTITION


def test_a_stored_partition_is_the_same_on_both_sides() -> None:
    partition_id = ResultPartitionId(ResultId("ab" * 16), producer=3, attempt=7)
    stored = StoredPartition(partition_id, size_bytes=2**40, rows=2**33, path="/tmp/p")
    assert STORED_PARTITION.decode(STORED_PARTITION.encode(stored)) == stored
