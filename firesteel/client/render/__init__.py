"""Renders jobs, plans and clusters as tables and text for the terminal."""

from firesteel.client.render.checkpoint_report import checkpoints
from firesteel.client.render.cluster_report import cluster, masters, metrics, overview_of, pods
from firesteel.client.render.job_progress import Pace, mostly, progress, states_text
from firesteel.client.render.job_report import job, plan, timing
from firesteel.client.render.tables import console

__all__ = [
    "Pace",
    "checkpoints",
    "cluster",
    "console",
    "job",
    "masters",
    "metrics",
    "mostly",
    "overview_of",
    "plan",
    "pods",
    "progress",
    "states_text",
    "timing",
]
