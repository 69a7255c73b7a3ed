"""Creates the driver of a process from its configuration."""

from __future__ import annotations

from pathlib import Path

from firesteel.common.config import Configuration, options
from firesteel.kubernetes.configuration import access_of
from resourcemanager.kubernetes.driver import KubernetesDriver
from resourcemanager.kubernetes.settings import kubernetes_settings


def kubernetes_driver(
    conf: Configuration, *, directory: Path, initial_workers: int
) -> KubernetesDriver:
    """Raises ConfigurationError, and KubernetesConfigurationError if there is no access."""
    settings = kubernetes_settings(conf, initial_workers=initial_workers)
    return KubernetesDriver(
        settings, access_of(conf), directory=directory, logs_kept=conf.get(options.LOG_MAX)
    )
