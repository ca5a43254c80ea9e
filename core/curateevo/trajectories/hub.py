"""Public data sets by name, fetched at pinned revisions and read by agentpile: `hub://NAME?option=value&...`.

Options are those of the data set (`config=agenttuning_os`), `limit`, the number of runs, and `root`, a folder laid out
like the data set's files: with it nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlparse

import agentpile

from curateevo.api.errors import CorpusInvalid, Denied, Transient
from curateevo.trajectories.formats.atif import record_to_trajectory
from curateevo.trajectories.formats.atif_steps import READER_ERRORS
from curateevo.trajectories.model import RowInvalid, Trajectory, check
from curateevo.trajectories.reading import SetAside


def read_hub(uri: str) -> Iterator[Trajectory | SetAside]:
    """The runs of a data set in order. Raises CorpusInvalid for names and options that are not known, Denied for a data
    set whose terms were not accepted, and Transient when the hub can't be reached."""
    name, options = _parse(uri)
    source, licence = f"hub://{name}", licence_of(name)
    number = 0
    runs = _open(name, options)
    while True:
        number += 1
        try:
            run = next(runs)
        except StopIteration:
            return
        except READER_ERRORS as error:
            yield SetAside(source, number, f"{error or type(error).__name__}; no further run was read")
            return
        try:
            trajectory = record_to_trajectory(run.to_dict(), f"{source}:{number}")
            check(trajectory)
        except (RowInvalid, *READER_ERRORS) as error:
            yield SetAside(source, number, f"{run.id}: {error}")
        else:
            yield replace(trajectory, format=name, licence=licence)


def licence_of(name: str) -> str | None:
    """What the data set's card declares, by agentpile's manifest; None when it declares nothing."""
    declared = agentpile.datasets.get(name).manifest.get("license_on_card")
    return None if declared in (None, "not declared") else f"{declared} (card of {name})"


def _parse(uri: str) -> tuple[str, dict[str, Any]]:
    parts = urlparse(uri)
    name, options = parts.netloc, dict[str, Any](parse_qsl(parts.query))
    if name not in agentpile.datasets:
        raise CorpusInvalid(
            f"corpus source {uri!r}: no data set called {name!r}", f"known: {', '.join(agentpile.datasets.names())}"
        )
    if "limit" in options:
        try:
            options["limit"] = int(options["limit"])
        except ValueError as error:
            raise CorpusInvalid(f"corpus source {uri!r}: limit must be a whole number") from error
    return name, options


def _open(name: str, options: dict[str, Any]) -> Iterator[Any]:
    try:
        return iter(agentpile.datasets.get(name).load(**options))
    except agentpile.errors.GatedDataset as error:
        raise Denied(f"hub://{name}: {error}", "accept its terms, and give ingest a token") from error
    except ImportError as error:
        raise CorpusInvalid(f"hub://{name}: {error}", "install huggingface_hub where ingest runs") from error
    except Exception as error:  # the hub's client raises what its HTTP library does
        raise Transient(
            f"hub://{name}: the hub can't be reached: {error}".splitlines()[0],
            f"reach it from where ingest runs, or copy the data set there: hub://{name}?root=FOLDER",
        ) from error
