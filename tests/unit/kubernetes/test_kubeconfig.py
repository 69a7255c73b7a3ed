"""Kubeconfig files, the ServiceAccount of a pod, and their errors."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.access.find import find_access
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.errors import KubernetesConfigurationError


def kubeconfig(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    } | changes


def user(**fields: Any) -> dict[str, Any]:
    return kubeconfig(users=[{"name": "u", "user": fields}])


def cluster(**fields: Any) -> dict[str, Any]:
    server = {"server": "https://10.0.0.1:6443"}
    return kubeconfig(clusters=[{"name": "c", "cluster": server | fields}])


def written(directory: Path, content: Any, name: str = "config") -> Path:
    path = directory / name
    path.write_text(yaml.safe_dump(content))
    return path


def read(directory: Path, content: Any, **options: Any) -> ClusterAccess:
    return from_kubeconfig([written(directory, content)], environment={}, **options)


async def headers(access: ClusterAccess) -> dict[str, str]:
    return dict((await access.credentials.current()).headers)


def problem(directory: Path, content: Any, **options: Any) -> str:
    with pytest.raises(KubernetesConfigurationError) as caught:
        read(directory, content, **options)
    return str(caught.value).replace(str(directory), "DIR")


async def test_the_current_context_names_server_and_token(tmp_path: Path) -> None:
    access = read(tmp_path, kubeconfig())
    assert access.server == "https://10.0.0.1:6443"
    assert access.namespace == "default"
    assert await headers(access) == {"Authorization": "Bearer secret"}
    assert "secret" not in repr(await access.credentials.current())


def test_a_context_has_a_namespace_which_an_argument_replaces(tmp_path: Path) -> None:
    context = {"cluster": "c", "user": "u", "namespace": "jobs"}
    config = kubeconfig(contexts=[{"name": "other", "context": context}])
    assert read(tmp_path, config, context="other").namespace == "jobs"
    assert read(tmp_path, config, context="other", namespace="mine").namespace == "mine"


def test_the_first_of_several_files_has_priority(tmp_path: Path) -> None:
    first = {"contexts": [{"name": "test", "context": {"cluster": "c", "namespace": "first"}}]}
    paths = [tmp_path / "missing", written(tmp_path, first, "a"), written(tmp_path, kubeconfig())]
    access = from_kubeconfig(paths, environment={})
    assert (access.namespace, access.server) == ("first", "https://10.0.0.1:6443")


async def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    access = read(tmp_path, user(tokenFile="token"))
    (tmp_path / "token").write_text("one\n")
    assert await headers(access) == {"Authorization": "Bearer one"}
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(tmp_path / "token")
    assert await headers(access) == {"Authorization": "Bearer two"}
    (tmp_path / "token").unlink()
    with pytest.raises(KubernetesConfigurationError, match="user u in .*config names the token"):
        await headers(access)


async def test_passwords_and_impersonation_become_headers(tmp_path: Path) -> None:
    fields = {"username": "a", "password": "b", "as": "bob", "as-groups": ["dev"]}
    assert await headers(read(tmp_path, user(**fields))) == {
        "Authorization": "Basic YTpi",
        "Impersonate-User": "bob",
        "Impersonate-Group": "dev",
    }


def test_certificates_are_files_beside_the_config_or_data(tmp_path: Path) -> None:
    data = base64.b64encode(b"ca").decode()
    access = read(tmp_path, cluster(**{"certificate-authority-data": data}))
    assert access.tls.authority is not None and access.tls.authority.read() == b"ca"
    access = read(tmp_path, cluster(**{"certificate-authority": "ca.crt"}))
    assert access.tls.authority is not None
    assert access.tls.authority.path == tmp_path / "ca.crt"
    with pytest.raises(KubernetesConfigurationError) as caught:
        access.tls.authority.read()
    assert str(caught.value) == (
        f"certificate-authority of cluster c in {tmp_path}/config names {tmp_path}/ca.crt, which"
        " cannot be read: No such file or directory"
    )


def test_a_server_may_be_trusted_blindly_or_by_another_name(tmp_path: Path) -> None:
    assert read(tmp_path, cluster(**{"insecure-skip-tls-verify": True})).tls.insecure
    assert read(tmp_path, cluster(**{"tls-server-name": "api"})).tls.server_name == "api"


def test_the_proxy_of_the_cluster_has_priority(tmp_path: Path) -> None:
    environment = {"HTTPS_PROXY": "proxy:3128"}
    path = written(tmp_path, cluster())
    assert from_kubeconfig([path], environment=environment).proxy == "http://proxy:3128"
    path = written(tmp_path, cluster(**{"proxy-url": "http://own:80"}))
    assert from_kubeconfig([path], environment=environment).proxy == "http://own:80"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ([], {}, "DIR/config is not a kubeconfig file"),
        (
            kubeconfig(**{"current-context": ""}),
            {},
            "DIR/config has no current-context; name a context, one of: test",
        ),
        (
            kubeconfig(),
            {"context": "live"},
            "DIR/config has no context 'live'; its contexts are: test",
        ),
        (
            kubeconfig(clusters=[]),
            {},
            "context test in DIR/config names the cluster 'c', which does not exist; there are: none",
        ),
        (
            kubeconfig(users=[{"name": "v"}]),
            {},
            "context test in DIR/config names the user 'u', which does not exist; there are: v",
        ),
        (
            cluster(server="10.0.0.1"),
            {},
            "cluster c in DIR/config: server '10.0.0.1' is not a URL such as https://HOST:PORT",
        ),
        (
            cluster(**{"certificate-authority-data": "!"}),
            {},
            "cluster c in DIR/config: certificate-authority-data is not in base64",
        ),
        (
            cluster(**{"proxy-url": "socks5://me:secret@proxy:1080"}),
            {},
            "proxy-url of cluster c in DIR/config: socks5://proxy:1080 is not supported; expected"
            " http://HOST:PORT or https://HOST:PORT",
        ),
        (
            user(**{"client-certificate": "a.crt"}),
            {},
            "user u in DIR/config has no client-key",
        ),
        (
            user(exec={"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}),
            {},
            "exec of user u in DIR/config: apiVersion 'client.authentication.k8s.io/v1alpha1' is not"
            " supported; expected client.authentication.k8s.io/v1",
        ),
        (
            user(**{"auth-provider": {"name": "gcp"}}),
            {},
            "user u in DIR/config uses auth-provider, which Kubernetes 1.26 removed; configure the"
            " exec plugin of the provider instead",
        ),
    ],
)
def test_errors_name_the_file_and_what_is_missing(
    tmp_path: Path, content: Any, options: dict[str, str], message: str
) -> None:
    assert problem(tmp_path, content, **options) == message


# ---- exec plugins


def plugin(directory: Path, *, code: str, **fields: Any) -> ClusterAccess:
    script = directory / "plugin.py"
    script.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
    script.chmod(0o755)
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./plugin.py",
        "interactiveMode": "Never",
    } | fields
    return read(directory, user(exec=exec_))


PRINT = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
runs = open("RUNS", "a+"); runs.write("x"); runs.seek(0)
status = {"token": f"{os.environ.get('NAME')}-{sys.argv[1:]}-{len(runs.read())}"} | MORE
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def printing(directory: Path, more: dict[str, Any]) -> str:
    return PRINT.replace("RUNS", str(directory / "runs")).replace("MORE", repr(more))


async def test_a_plugin_is_run_once_until_its_token_is_refused(tmp_path: Path) -> None:
    access = plugin(
        tmp_path,
        code=printing(tmp_path, {}),
        args=["get"],
        env=[{"name": "NAME", "value": "me"}],
    )
    first = await access.credentials.current()
    assert first.headers == {"Authorization": "Bearer me-['get']-1"}
    assert await access.credentials.current() is first
    second = await access.credentials.current(first)
    assert second.headers == {"Authorization": "Bearer me-['get']-2"}
    # A request that was sent with the first token is refused after the token was renewed.
    assert await access.credentials.current(first) is second


async def test_an_expired_token_is_renewed(tmp_path: Path) -> None:
    expired = {"expirationTimestamp": "2024-01-01T00:00:00Z"}
    access = plugin(tmp_path, code=printing(tmp_path, expired))
    assert (await headers(access))["Authorization"].endswith("-1")
    assert (await headers(access))["Authorization"].endswith("-2")


async def test_a_plugin_may_return_a_certificate_and_learn_the_cluster(tmp_path: Path) -> None:
    code = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
status = {"clientCertificateData": info["spec"]["cluster"]["server"], "clientKeyData": "key"}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""
    access = plugin(tmp_path, code=code, provideClusterInfo=True)
    certificate = (await access.credentials.current()).certificate
    assert certificate is not None
    assert certificate.certificate.read() == b"https://10.0.0.1:6443/"
    assert certificate.key.read() == b"key"


@pytest.mark.parametrize(
    ("code", "fields", "message"),
    [
        (
            "",
            {"command": "no-such-plugin", "installHint": "install it\n"},
            "names the exec plugin no-such-plugin, which cannot be started: No such file or"
            " directory\ninstall it",
        ),
        ("sys.exit('log in first')", {}, "which ended with exit code 1: log in first"),
        ("print('{}')", {}, "which did not print an ExecCredential with a status"),
        (
            "print(json.dumps({'apiVersion': 'v0', 'status': {'token': 'x'}}))",
            {},
            "which answered with v0, not client.authentication.k8s.io/v1",
        ),
        ("", {"interactiveMode": "Always"}, "which needs a terminal (interactiveMode: Always)"),
    ],
)
async def test_errors_of_plugins_name_user_file_and_plugin(
    tmp_path: Path, code: str, fields: dict[str, str], message: str
) -> None:
    access = plugin(tmp_path, code=code, **fields)
    with pytest.raises(KubernetesConfigurationError) as caught:
        await access.credentials.current()
    assert str(caught.value).startswith(f"exec of user u in {tmp_path}/config names the exec")
    assert message in str(caught.value)


# ---- the pod's ServiceAccount


def mounted(directory: Path) -> dict[str, str]:
    for name, content in (("token", "one"), ("namespace", "jobs\n"), ("ca.crt", "ca")):
        (directory / name).write_text(content)
    return {
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "443",
        "FIRESTEEL_SERVICE_ACCOUNT_DIR": str(directory),
        "HTTPS_PROXY": "http://proxy:3128",
        "NO_PROXY": "fd00::/8",
        "HOME": str(directory),
    }


async def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    access = find_access(environment=mounted(tmp_path))
    assert access.server == "https://[fd00::1]:443"
    assert (access.namespace, access.proxy) == ("jobs", None)
    assert access.tls.authority is not None and access.tls.authority.read() == b"ca"
    assert await headers(access) == {"Authorization": "Bearer one"}


def test_a_pod_without_a_token_says_what_to_change(tmp_path: Path) -> None:
    environment = mounted(tmp_path)
    (tmp_path / "token").unlink()
    with pytest.raises(KubernetesConfigurationError, match="automountServiceAccountToken: false"):
        find_access(environment=environment)


def test_a_file_and_kubeconfig_have_priority_over_the_pod(tmp_path: Path) -> None:
    environment = mounted(tmp_path)
    path = str(written(tmp_path, kubeconfig()))
    assert find_access(file=path, environment=environment).server == "https://10.0.0.1:6443"
    environment["KUBECONFIG"] = path
    assert find_access(environment=environment).server == "https://10.0.0.1:6443"


def test_without_any_configuration_the_error_names_all_places(tmp_path: Path) -> None:
    with pytest.raises(KubernetesConfigurationError) as caught:
        find_access(environment={"HOME": str(tmp_path)})
    assert str(caught.value) == (
        f"there is no access to Kubernetes: {tmp_path}/.kube/config does not exist, KUBECONFIG is"
        " not set, and this process is not in a pod"
    )


def test_the_file_in_the_home_folder_comes_last(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(json.dumps(kubeconfig()))
    environment = {"HOME": str(tmp_path)}
    assert find_access(environment=environment).server == "https://10.0.0.1:6443"
