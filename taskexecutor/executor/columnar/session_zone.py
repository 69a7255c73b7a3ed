"""The time zone of the slot's session, for operators that run the program's Python."""

from __future__ import annotations

from firesteel.common.time_zones import SESSION_TIME_ZONE
from firesteel.operator import RuntimeContext


def session_zone(context: RuntimeContext) -> str:
    """Returns `spark.sql.session.timeZone`: the job's, or else the cluster's."""
    zone = context.config.get(SESSION_TIME_ZONE)
    if zone is None and context.spark is not None:
        zone = context.spark.conf.get(SESSION_TIME_ZONE)
    return zone or "UTC"
