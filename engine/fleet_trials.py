"""A fleet's requests under routing rules and numbers of replicas, each kept under what made it.

It knows how to name a fleet run so that the same question is answered from disk, and which settings a
recorded fleet was made with. Routing and simulating are in `fleet.py`; figures are worked out elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineSettings
from engine.fleet import Report, simulate_fleet
from engine.replay import settings_of
from engine.trials import run_id, whole
from traces.errors import SettingsError
from traces.fleet_requests import FleetRequests

RULE_AS_RECORDED = "as-recorded"
DONE_FILE = "fleet.json"


def settings_of_ranks(requests: FleetRequests) -> tuple[EngineSettings, ...]:
    """The settings to simulate each rank with, as it was recorded. Raises SettingsError."""
    found = []
    for name, meta in zip(requests.tracks, requests.metas, strict=True):
        clock = meta.settings.get("clock")
        if clock == "step" or meta.clock == "step":
            raise SettingsError(
                f"{name} counts time in steps, and requests of several ranks meet in seconds. Record it on the modelled clock."
            )
        # Times that were measured belong to the recorded steps, and another split has others.
        changes = {"clock": "modelled"} if clock == "measured" else {}
        found.append(settings_of(meta, max_steps=None, **changes))
    return tuple(found)


class FleetTrials:
    """Runs of one fleet's requests. directory: id of 32 hex digits -> where that run lies or is to be
    written; settings: of each recorded rank, the first ones' are those of every new replica."""

    def __init__(
        self,
        requests: FleetRequests,
        settings: Sequence[EngineSettings],
        directory: Callable[[str], Path],
    ) -> None:
        self.requests = requests
        self.settings = tuple(settings)
        self.directory = directory

    def run(
        self,
        num_replicas: int,
        rule: str,
        *,
        report: Report | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Path | None:
        """The folder of that many replicas under a rule, simulated or found; None where cancelled.

        rule: of traces.routing.ROUTERS, or "as-recorded": each request goes where it went, under that
        rank's own settings. Raises SettingsError, RecordingError.
        """
        again = rule == RULE_AS_RECORDED
        each = self.settings if again else None
        made_of: dict[str, Any] = {
            "rule": rule,
            "replicas": num_replicas,
            "settings": [asdict(s) for s in (self.settings if again else self.settings[:1])],
            "replica_of": _digest(self.requests.track_of) if again else None,
        }
        target = self.directory(run_id(self.requests.workload, made_of))

        def make(part: Path) -> bool:
            done = simulate_fleet(
                self.requests.workload,
                self.settings[0],
                num_replicas,
                rule,
                part,
                replica_of=self.requests.track_of if again else None,
                each=each,
                report=report,
                cancelled=cancelled,
            )
            if done.status == "cancelled":
                return False
            counts = np.bincount(done.replica_of, minlength=num_replicas)
            said = {"rule": rule, "replicas": num_replicas, "status": done.status, "num_requests": counts.tolist()}  # fmt: skip
            (part / DONE_FILE).write_text(json.dumps(said), "utf-8")
            return True

        return whole(target, DONE_FILE, make)


def _digest(values: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).hexdigest()
