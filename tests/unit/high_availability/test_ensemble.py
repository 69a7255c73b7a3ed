"""How a configuration names an ensemble."""

from __future__ import annotations

import pytest

from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.leader import Office
from firesteel.high_availability.zookeeper.ensemble import Ensemble

PREFIX = "high-availability."


def ensemble(**values: str) -> Ensemble:
    given = {"zookeeper.quorum": "one:2181;two:2181"} | {
        key.replace("__", ".").replace("_", "-"): value for key, value in values.items()
    }
    return Ensemble.of(Configuration({PREFIX + key: value for key, value in given.items()}))


def test_nodes_are_below_the_root_and_the_cluster_id() -> None:
    found = ensemble(zookeeper__path__root="/a/b/", cluster_id="/mine")
    assert found.servers == ("one:2181", "two:2181")
    assert found.leader(Office.DISPATCHER) == "/a/b/mine/leader/dispatcher/connection_info"
    assert ensemble().epoch(Office.RESOURCE_MANAGER) == "/firesteel/default/epoch/resource_manager"
    assert found.authorization is None and not found.creator_only


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"zookeeper__quorum": ""}, "needs high-availability.zookeeper.quorum"),
        ({"zookeeper__quorum": "one"}, "'one' is not allowed; expected HOST:PORT"),
        ({"zookeeper__quorum": "one:2181,two:x"}, "'two:x' is not allowed; expected HOST:PORT"),
        ({"zookeeper__path__root": "a"}, "'a' is not allowed; expected a path such as /firesteel"),
        ({"zookeeper__path__root": "/a/../b"}, "'/a/../b' is not allowed; expected a path"),
        ({"cluster_id": "a/b"}, "'a/b' is not allowed; expected a name without '/'"),
        ({"cluster_id": "/"}, "'' is not allowed; expected a name without '/'"),
        ({"zookeeper__client__acl": "creator"}, "creator needs high-availability"),
        ({"zookeeper__client__authorization": "me:secret"}, "expected digest:USER:PASSWORD"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        ensemble(**values)
    assert message in str(error.value)
    assert "secret" not in str(error.value)
