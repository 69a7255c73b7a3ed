"""The defects. Each is one replacement in one file."""

from __future__ import annotations

from dataclasses import dataclass

SIMULATION = "simulation"  # `make sim`, from seed 0 on
_REFLECTOR = "tests/unit/kubernetes/test_reflector_core.py"
_LEASES = "tests/unit/high_availability/test_lease_simulation.py"
_PODS = "tests/unit/resourcemanager/test_pods_core.py"
_POD_SEEDS = "tests/simulation/test_pods.py"
_KAFKA = "tests/integration/test_kafka_sink.py"
_RANGES = "tests/integration/test_kafka_ranges.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str  # the mistake, as in docs/hacking.md
    file: str
    was: str  # exactly once in the file
    becomes: str
    convicted_by: str  # what pytest is to run, or SIMULATION


MUTANTS = (
    Mutant(
        "tasks hear that a checkpoint is complete before it is stored",
        "jobmaster/core/checkpoints/coordinator.py",
        """            return [*self._fail(checkpoint, cause, now), *self._begin_requested(now)]
        return self._store_next()
""",
        """            return [*self._fail(checkpoint, cause, now), *self._begin_requested(now)]
        return [self._notice(checkpoint, completed=True), *self._store_next()]
""",
        SIMULATION,
    ),
    Mutant(
        "the store takes the row of a master that was replaced (invariant 20)",
        "dispatcher/job_store.py",
        "if row is None or row.epoch != epoch or JobStatus[row.status].globally_terminal:",
        "if row is None or JobStatus[row.status].globally_terminal:",
        "tests/integration/test_job_store.py",
    ),
    Mutant(
        "a TaskExecutor that was declared dead is listened to (invariant 22)",
        "jobmaster/core/core.py",
        "        if execution is None or execution.terminal:\n"
        "            self.job.stale_messages += 1\n"
        "            return None\n",
        "        if execution is None:\n"
        "            self.job.stale_messages += 1\n"
        "            return None\n",
        "tests/unit/jobmaster/test_core.py",
    ),
    Mutant(
        "the JobMaster that cannot reach a TaskExecutor has it declared dead for all",
        "resourcemanager/core/core.py",
        "        if executor.connection is None or executor.heard_at + heard_within_s < self._now:\n",
        "        if heard_within_s:\n",
        "tests/unit/resourcemanager/test_slot_manager.py",
    ),
    Mutant(
        "a JobMaster keeps to itself that a TaskExecutor is dead (invariant 22)",
        "jobmaster/core/core.py",
        "        return [report, *self._task_executor_lost(task_executor_id, cause, now)]\n",
        "        return self._task_executor_lost(task_executor_id, cause, now)\n",
        "tests/unit/jobmaster/test_core.py",
    ),
    Mutant(
        "TaskExecutors do not hear of the JobMaster that takes a job over",
        "resourcemanager/core/core.py",
        "        for executor in self._holders(job):\n            self._introduce(job, executor)\n",
        "",
        "tests/unit/resourcemanager/test_slot_manager.py",
    ),
    Mutant(
        "no task reads a split that was lost on its way to an adopted task (invariant 17)",
        "jobmaster/core/coordinators/splits.py",
        "                self._returned.extend(range(self._next, place))\n",
        "",
        "tests/unit/jobmaster/test_adoption.py",
    ),
    Mutant(
        "a split that an adopted task has is assigned again (invariant 17)",
        "jobmaster/core/coordinators/splits.py",
        "                self._next = place + 1\n",
        "",
        "tests/unit/jobmaster/test_adoption.py",
    ),
    Mutant(
        "the next JobMaster assigns the splits of finished tasks again",
        "jobmaster/core/coordinators/splits.py",
        "        self._taken(places)\n        self._owned",
        "        self._owned",
        "tests/unit/jobmaster/test_adoption.py",
    ),
    Mutant(
        "a task keeps rows that come to another one under the next master",
        "jobmaster/core/job_context.py",
        "if self.coordinators.reads_anew(v.current)]",
        "if False]",
        "tests/unit/jobmaster/test_adoption.py",
    ),
    Mutant(
        "a task keeps rows of which another attempt has made others (invariant 18)",
        "jobmaster/core/job_context.py",
        "            if not (newly := self._with_other_rows(found) - other_rows):\n",
        "            if not (newly := set[VertexId]()):\n",
        "tests/unit/jobmaster/test_scheduling.py",
    ),
    Mutant(
        "tasks start to read a result that is about to be produced again",
        "jobmaster/core/phases.py",
        "        job.partitions.replace_those_of(vertices)\n",
        "",
        "tests/unit/jobmaster/test_scheduling.py",
    ),
    Mutant(
        "who did not end the job deletes its checkpoints (invariant 7)",
        "dispatcher/core/core.py",
        "(job.status, job.epoch) == (event.status, event.epoch)",
        "job.ended",
        "tests/unit/dispatcher/test_core.py",
    ),
    Mutant(
        "tasks are moved away before a checkpoint has what they have done",
        "jobmaster/core/vacating.py",
        "            if move.ready:\n                phase,",
        "            if slots:\n                phase,",
        "tests/unit/jobmaster/test_vacating.py",
    ),
    Mutant(
        "a TaskExecutor that is to stop gets tasks again",
        "jobmaster/core/vacating.py",
        "        self._job.pool.vacate(event.task_executor_id, now)\n",
        "",
        "tests/unit/jobmaster/test_vacating.py",
    ),
    Mutant(
        "adopted tasks hear of a checkpoint in which they have no part (invariant 15)",
        "jobmaster/core/checkpoints/coordinator.py",
        "[tasks[a] for a, of in open_checkpoints.items() if complete_id in of]",
        "list(tasks.values())",
        "tests/unit/jobmaster/test_adoption.py",
    ),
    Mutant(
        "a leader acts beyond its lease (invariant 20)",
        "firesteel/high_availability/election.py",
        "LEASE_PART = 5 / 6 ",
        "LEASE_PART = 3 ",
        SIMULATION,
    ),
    Mutant(
        "an epoch goes back (invariant 20)",
        "firesteel/high_availability/zookeeper/nodes.py",
        '        epoch = Epoch(max(int(data or b"0"), self.above) + 1)\n',
        "        epoch = Epoch(self.above + 1)\n",
        SIMULATION,
    ),
    Mutant(
        "the leader's Lease counts from the answer to its renewal (invariant 20)",
        "firesteel/high_availability/kubernetes/core.py",
        "self._lease_until = self._asked_at + self._durations.renew_deadline_s",
        "self._lease_until = now + 3.4 + self._durations.renew_deadline_s",
        _LEASES,
    ),
    Mutant(
        "a paused leader recreates its Lease (invariant 20)",
        "firesteel/high_availability/kubernetes/core.py",
        """            if not in_time:
                self._end("its Lease was deleted")
""",
        """            self._lease_until = max(self._lease_until, now + 1)
""",
        _LEASES,
    ),
    Mutant(
        "a Lease whose count was edited lowers the epoch (invariant 20)",
        "firesteel/high_availability/kubernetes/core.py",
        "Epoch(max(self._highest, floor) + 1)",
        "Epoch(lease.transitions + 1)",
        _LEASES,
    ),
    Mutant(
        "a leader that may not act answers clients (invariant 20)",
        "firesteel/common/rpc/gate.py",
        " and (name in self._peers or self._election.acts())\n",
        "\n",
        SIMULATION,
    ),
    Mutant(
        "the store takes what a Dispatcher writes that leads no more (invariant 20)",
        "dispatcher/job_store.py",
        "        if epoch != self.epoch:\n",
        "        if epoch < self.epoch:\n",
        "tests/unit/dispatcher/test_job_store.py",
    ),
    Mutant(
        "the next ResourceManager does not know of allocations (invariant 19)",
        "resourcemanager/core/slots.py",
        "            if status.allocation_id is None:\n                changed",
        "            if status.allocation_id is None or slot.state is SlotState.FREE:\n"
        "                changed",
        "tests/unit/resourcemanager/test_slot_manager.py",
    ),
    Mutant(
        "the next Dispatcher runs a job again that has ended (invariant 1)",
        "dispatcher/core/core.py",
        "            if job.job_master_id is not None and not job.ended:\n                job.adopt",
        "            if job.job_master_id is not None:\n                job.adopt",
        "tests/simulation/test_masters.py",
    ),
    Mutant(
        "tasks restore nothing",
        "jobmaster/core/scheduling/scheduler.py",
        "        restored = self.restored\n        if restored is None:\n",
        "        restored = None\n        if restored is None:\n",
        SIMULATION,
    ),
    Mutant(
        "a subtask restores all rows of small state, also those of other subtasks' keys",
        "firesteel/common/checkpoints/key_group_content.py",
        "            if key_group in key_groups:\n                yield RowsSlice",
        "            if count:\n                yield RowsSlice",
        "tests/unit/task/checkpoints/test_state_files.py",
    ),
    Mutant(
        "a subtask restores the broadcast state of another one",
        "jobmaster/core/checkpoints/restore.py",
        "                if unchanged and subtask in operator.subtasks\n",
        "                if False\n",
        "tests/unit/jobmaster/checkpoints/test_restore.py",
    ),
    Mutant(
        "a second commit of the same file is an error",
        "taskexecutor/executor/connectors/files/sink.py",
        "                self._check_committed(file)\n",
        "                raise\n",
        "tests/unit/operators/test_connectors.py",
    ),
    Mutant(
        "after a failure, no task commits the transactions of the checkpoint (invariant 23)",
        "taskexecutor/executor/connectors/writer_sink.py",
        "                self._committer.start_over()\n            self._commit_checkpoints()\n",
        "                self._committer.start_over()\n            self._in_checkpoints.clear()\n",
        "tests/unit/recovery/test_matrix.py",
    ),
    Mutant(
        "a reader's position is older than the rows it has sent",
        "taskexecutor/executor/connectors/split_source.py",
        "        return self._splits.position(Begun(self._split, self._reader.position()))\n",
        "        return self._splits.position(Begun(self._split, None))\n",
        "tests/unit/recovery/test_matrix.py",
    ),
    Mutant(
        "a barrier overtakes data: inputs are not held back",
        "taskexecutor/executor/task/input_task.py",
        "                    self._gates[gate].block(channel, BlockReason.BARRIER_ALIGNMENT)\n",
        "                    pass\n",
        "tests/unit/task/checkpoints/test_task_checkpoints.py",
    ),
    Mutant(
        "an ambiguous answer of the store counts as a refusal (invariant 5)",
        "jobmaster/checkpoint_store.py",
        "                known = False\n",
        "                return '?'\n",
        "tests/unit/jobmaster/checkpoints/test_store.py",
    ),
    Mutant(
        "tasks are stopped before their new parallelism is stored",
        "jobmaster/core/rescaling.py",
        "            case _Stage.STORING if not job.parallelism.settled:\n",
        "            case _Stage.STORING if False:\n",
        "tests/unit/jobmaster/test_rescaling.py",
    ),
    Mutant(
        "a job that follows its slots exceeds its upper bounds",
        "jobmaster/core/elasticity.py",
        "by_vertex = {v: min(max(level, lower[v]), bound) for v, bound in upper.items()}",
        "by_vertex = {v: max(level, lower[v]) for v, bound in upper.items()}",
        "tests/unit/jobmaster/test_elasticity.py",
    ),
    Mutant(
        "the autoscaler removes subtasks as soon as fewer suffice",
        "jobmaster/core/autoscaler.py",
        "            if known_s < settings.scale_down_s - settings.window_s:\n"
        "                number = current\n",
        "",
        "tests/unit/jobmaster/test_autoscaler.py",
    ),
    Mutant(
        "the next JobMaster leaves a change of the parallelism in progress",
        "jobmaster/core/rescale_history.py",
        "        if self._open:\n",
        "        if not self._records:\n",
        "tests/unit/jobmaster/test_rescaling.py",
    ),
    Mutant(
        "tasks of another parallelism are adopted",
        "jobmaster/shell.py",
        "start.reconciles and same else",
        "start.reconciles else",
        "tests/simulation/test_scenarios.py::test_no_task_of_another_parallelism_is_adopted",
    ),
    Mutant(
        "an earlier checkpoint than the latest is restored (invariant 6)",
        "jobmaster/core/checkpoints/completed.py",
        "        self.latest = self._metadata[checkpoint_id]\n",
        "        self.latest = self.latest or self._metadata[checkpoint_id]\n",
        SIMULATION,
    ),
    Mutant(
        "checkpoint ids restart under another JobMaster (invariant 8)",
        "jobmaster/core/checkpoints/recovery.py",
        "        return before + (self.epoch - self.latest_epoch) * CHECKPOINTS_PER_MASTER + 1\n",
        "        return 1\n",
        SIMULATION,
    ),
    Mutant(
        "a shared file goes although a pending checkpoint builds on it (invariant 10)",
        "jobmaster/core/checkpoints/coordinator.py",
        "        self.shared.begun(checkpoint.checkpoint_id, base or 0)\n",
        "        self.shared.begun(checkpoint.checkpoint_id, 0)\n",
        "tests/unit/jobmaster/checkpoints/test_shared_files.py",
    ),
    Mutant(
        "a stop without --drain ends the data, too (invariant 11)",
        "taskexecutor/executor/task/checkpoints/task_checkpoints.py",
        "        is_final = stops or (self._final is not None and checkpoint_id >= self._final)\n",
        "        is_final = self._final is not None and checkpoint_id >= self._final\n",
        "tests/unit/recovery/test_stop.py",
    ),
    Mutant(
        "a union list of which a part is missing is complete (invariant 14)",
        "jobmaster/core/checkpoints/coordinator.py",
        "        torn = checkpoint.torn_union_list()\n",
        '        torn = ""\n',
        "tests/unit/jobmaster/checkpoints/test_coordinator.py",
    ),
    Mutant(
        "a finished operator is not finished in the next checkpoint (invariant 15)",
        "jobmaster/core/checkpoints/completed.py",
        "                        vertex.vertex_id in plan.finished\n",
        "                        False\n",
        "tests/unit/jobmaster/checkpoints/test_job.py",
    ),
    Mutant(
        "an enumerator does not restore which splits it had assigned (invariant 17)",
        "jobmaster/core/coordinators/splits.py",
        '        self._next, self._returned = snapshot["next"], list(snapshot["returned"])\n',
        "        self._next, self._returned = 0, []\n",
        SIMULATION,
    ),
    Mutant(
        "a slot that was lost stays in the pool (invariant 19)",
        "jobmaster/core/core.py",
        "        lost = [self.pool.lose(each, now, error.summary) for each in allocation_ids]\n",
        "        lost = [self.pool.slots.get(each) for each in allocation_ids]\n",
        SIMULATION,
    ),
    Mutant(
        "a result is released when its first consumer has finished (invariant 18)",
        "jobmaster/core/partitions.py",
        "    if consumer.counts[_FINISHED.value] < consumer.parallelism:\n",
        "    if consumer.counts[_FINISHED.value] < 1:\n",
        SIMULATION,
    ),
    Mutant(
        "a region starts before what it reads is complete (invariant 18)",
        "jobmaster/core/scheduling/strategies.py",
        "    return finished == result.producer.parallelism and not result.lost\n",
        "    return finished >= 1 and not result.lost\n",
        SIMULATION,
    ),
    Mutant(
        "a failure restarts all regions (invariant 18)",
        "jobmaster/core/failover/regions.py",
        "    return regions.members_of(search.run())\n",
        "    return regions.members_of(range(len(regions))) if search.run() else []\n",
        SIMULATION,
    ),
    Mutant(
        "a task is restarted without those that it exchanges data with (invariant 18)",
        "jobmaster/core/failover/regions.py",
        "            search.begin(vertices, partitions)\n",
        "            if not partitions:\n"
        "                return list(vertices)\n"
        "            search.begin(vertices, partitions)\n",
        SIMULATION,
    ),
    Mutant(
        "a region ends at the second input of a vertex (invariant 18)",
        "jobmaster/core/failover/regions.py",
        "            if result.edge.result_type is ResultType.PIPELINED:\n                self._join",
        "            if result.edge.result_type is ResultType.PIPELINED and (\n"
        "                not result.edge.target_input\n"
        "            ):\n"
        "                self._join",
        SIMULATION,
    ),
    Mutant(
        "a subtask of a vertex that starts as a whole is not restarted (invariant 18)",
        "jobmaster/core/scheduling/strategies.py",
        "            if unit and all(self._can_be_fed(vertex, complete) for vertex in unit):\n",
        "            if len(unit) == len(members) and all(\n"
        "                self._can_be_fed(vertex, complete) for vertex in unit\n"
        "            ):\n",
        "tests/unit/jobmaster/test_scheduling.py",
    ),
    Mutant(
        "a consequence of what restarts tasks already uses up an attempt (invariant 21)",
        "jobmaster/core/phases.py",
        "            job.exceptions.also_failed(error)\n            return self, []\n",
        "            job.exceptions.also_failed(error)\n",
        "tests/unit/jobmaster/failover",
    ),
    Mutant(
        "who restores some of a subtask's key groups keeps the rows of all",
        "taskexecutor/executor/state/keyed_rows.py",
        "            table = self._own(table, rows.key_groups)\n",
        "            self._own(table, rows.key_groups)\n",
        "tests/unit/task/checkpoints/test_state_files.py",
    ),
    Mutant(
        "a KafkaSink commits before the checkpoint is complete (invariant 23)",
        "taskexecutor/executor/connectors/kafka/transactional.py",
        "        self._pool.wait_for_commit(current)\n",
        "        current.sender.client.commit_transaction(10)\n"
        "        self._pool.wait_for_commit(current)\n",
        f"{_KAFKA}::test_nothing_is_visible_before_the_commit",
    ),
    Mutant(
        "a KafkaSink leaves transactions of earlier attempts open",
        "taskexecutor/executor/connectors/kafka/transactional.py",
        "        self._leftovers.abort_own()\n",
        "",
        f"{_KAFKA}::test_a_committed_transaction_is_accepted_again_and_again",
    ),
    Mutant(
        "a KafkaSource takes what it fetched for one range of a partition as part of the next one",
        "taskexecutor/executor/connectors/kafka/source.py",
        "        if generation < self._generations.get(partition, 0):\n",
        "        if generation < 0:\n",
        f"{_RANGES}::test_the_end_of_the_log_does_not_end_the_next_range",
    ),
    Mutant(
        "a subtask of a bounded KafkaSource determines the ends itself",
        "taskexecutor/executor/connectors/kafka/source.py",
        "        return self._plan.share(task.subtask, task.parallelism)\n",
        "        plan = starting_offsets.planned(self._source, topics, listed)\n"
        "        return plan.share(task.subtask, task.parallelism)\n",
        f"{_RANGES}::test_all_subtasks_have_the_ends_of_the_analysis",
    ),
    Mutant(
        "a watch of Kubernetes resumes before the last deletion",
        "firesteel/kubernetes/reflector/core.py",
        "                self._resource_version = version_of(deleted)\n",
        "",
        f"{_REFLECTOR}::test_deletions_move_the_version_that_a_watch_resumes_at",
    ),
    Mutant(
        "an answer to a cancelled request to Kubernetes counts",
        "firesteel/kubernetes/reflector/core.py",
        "            elif event.number == self._number:\n",
        "            else:\n",
        f"{_REFLECTOR}::test_answers_to_cancelled_requests_are_ignored",
    ),
    Mutant(
        "a watch of Kubernetes that opens makes old objects current",
        "firesteel/kubernetes/reflector/core.py",
        "            case WatchOpened():  # changes since its resourceVersion follow\n"
        '                self.problem = ""\n',
        "            case WatchOpened():\n                self._alive(now)\n",
        f"{_REFLECTOR}::test_signs_of_life_make_the_snapshot_current",
    ),
    Mutant(
        "an object of Kubernetes is created twice if an answer is lost",
        "firesteel/kubernetes/client.py",
        '_REPEATABLE = frozenset({"get", "list", "delete", "patch"})',
        '_REPEATABLE = frozenset({"get", "list", "delete", "patch", "create"})',
        "tests/kubernetes/test_faults.py::test_a_create_of_unknown_outcome_is_not_repeated",
    ),
    Mutant(
        "pods are created before those of an earlier ResourceManager are known",
        "resourcemanager/kubernetes/core.py",
        "        if not self.synced:\n"
        "            return  # pods of an earlier ResourceManager count\n",
        "",
        f"{_PODS}::test_nothing_is_created_before_earlier_pods_are_known",
    ),
    Mutant(
        "a pod that an earlier leader created late stays",
        "resourcemanager/kubernetes/core.py",
        "            elif worker is None and pod is not None:\n                self._stray(pod)\n",
        "",
        f"{_PODS}::test_a_late_pod_of_an_earlier_leader_is_deleted",
    ),
    Mutant(
        "a ResourceManager waits for a worker whose pod is being deleted",
        "resourcemanager/core/core.py",
        "            self.workers.overdue(worker_id)\n        self._unsettled = True\n",
        "            self.workers.cordon(worker_id)\n        self._unsettled = True\n",
        "tests/unit/resourcemanager/test_stopping.py",
    ),
    Mutant(
        "pods that are being deleted are not adopted",
        "resourcemanager/kubernetes/core.py",
        "            if pod.deleting and not pod.leaving:\n",
        "            if pod.deleting:\n",
        f"{_PODS}::test_leaving_and_outdated_pods_are_reported_after_a_failover",
    ),
    Mutant(
        "all pods with an earlier configuration are replaced at the same time",
        "resourcemanager/core/core.py",
        "        if busy or not connected:\n",
        "        if not connected:\n",
        f"{_POD_SEEDS}::test_slots_workers_and_pods_agree_after_all_faults",
    ),
    Mutant(
        "an evicted pod counts as running until its containers have statuses",
        "firesteel/kubernetes/pods/status.py",
        'if status.get("phase") in ("Failed", "Succeeded") or "terminated" in main:',
        'if "terminated" in main:',
        "tests/unit/resourcemanager/test_pod.py::test_the_phase_comes_before_the_containers",
    ),
)
