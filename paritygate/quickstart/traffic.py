"""The quickstart's users: stock tritonclient, HTTP and gRPC by turns, the real test images."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from paritygate.quickstart.digits import Split

NUM_USERS = 400
_NUM_CLIENTS = 4
_MAX_BACKGROUND_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What one request came back with.

    Attributes:
        user: The sticky key that was sent.
        version: The model version that answered, or None when the request failed.
        correct: Whether the most probable digit is the image's label.
        elapsed_ms: From send to answer, in milliseconds.
        error: Why it failed, or None.
    """

    user: str
    version: str | None
    correct: bool
    elapsed_ms: float
    error: str | None = None


@dataclass
class Tally:
    """All answers of one phase, and the figures over them."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many requests were sent."""
        return len(self.answers)

    @property
    def failed(self) -> int:
        """How many came back with an error."""
        return sum(answer.error is not None for answer in self.answers)

    @property
    def first_error(self) -> str | None:
        """The first error text, for a person to see."""
        return next((answer.error for answer in self.answers if answer.error), None)

    def share_percent(self, version: str) -> float:
        """Percent of the answered requests that this version answered."""
        answered = [a for a in self.answers if a.version is not None]
        hits = sum(a.version == version for a in answered)
        return round(100.0 * hits / len(answered), 2) if answered else 0.0

    def users_on_two_versions(self) -> int:
        """How many users were answered by more than one version."""
        seen: dict[str, set[str]] = defaultdict(set)
        for answer in self.answers:
            if answer.version is not None:
                seen[answer.user].add(answer.version)
        return sum(len(versions) > 1 for versions in seen.values())

    def by_version(self) -> dict[str, dict[str, float]]:
        """Requests, accuracy (0..1), p50 and p99 in milliseconds for each version that answered."""
        groups: dict[str, list[Answer]] = defaultdict(list)
        for answer in self.answers:
            if answer.version is not None:
                groups[answer.version].append(answer)
        return {version: _figures(groups[version]) for version in sorted(groups, key=int)}


def _figures(answers: Sequence[Answer]) -> dict[str, float]:
    elapsed = [a.elapsed_ms for a in answers]
    return {
        "requests": len(answers),
        "accuracy": round(sum(a.correct for a in answers) / len(answers), 4),
        "p50_ms": round(float(np.percentile(elapsed, 50)), 3),
        "p99_ms": round(float(np.percentile(elapsed, 99)), 3),
    }


class _Client:
    """One connection of each protocol to the gateway, for one thread."""

    def __init__(self, model: str, http_url: str, grpc_url: str) -> None:
        import tritonclient.grpc
        import tritonclient.http

        self._model = model
        self._modules: tuple[Any, Any] = (tritonclient.http, tritonclient.grpc)
        self._clients: tuple[Any, Any] = (
            tritonclient.http.InferenceServerClient(http_url),
            tritonclient.grpc.InferenceServerClient(grpc_url),
        )

    def ask(self, user: str, split: Split, row: int, turn: int) -> Answer:
        """Send one image; even turns go over HTTP, odd ones over gRPC."""
        module, client = self._modules[turn % 2], self._clients[turn % 2]
        given = module.InferInput("image", [1, 1, 8, 8], "FP32")
        given.set_data_from_numpy(split.images[row : row + 1])
        started = time.perf_counter()
        try:
            result = client.infer(self._model, [given], headers={"x-user": user})
        except Exception as error:  # noqa: BLE001  any failure of a client is a failed request, and is counted
            return Answer(user, None, False, 0.0, f"{type(error).__name__}: {error}")
        elapsed_ms = 1000.0 * (time.perf_counter() - started)
        head = result.get_response()
        version = head["model_version"] if isinstance(head, dict) else head.model_version
        digit = int(result.as_numpy("probabilities")[0].argmax())
        return Answer(user, version, digit == int(split.labels[row]), elapsed_ms)

    def close(self) -> None:
        """Close both connections."""
        for client in self._clients:
            client.close()


@dataclass(frozen=True)
class Users:
    """The quickstart's 400 users and where they send their images."""

    model: str
    http_url: str
    grpc_url: str
    split: Split

    def send(self, requests_per_user: int) -> Tally:
        """Every user sends this many images, half over each protocol; returns when all are answered."""
        tally, lock = Tally(), threading.Lock()

        def work(first: int) -> None:
            client = _Client(self.model, self.http_url, self.grpc_url)
            answers = [
                client.ask(f"user-{user:03d}", self.split, (user + turn) % len(self.split.images), turn)
                for turn in range(requests_per_user)
                for user in range(first, NUM_USERS, _NUM_CLIENTS)
            ]
            client.close()
            with lock:
                tally.answers.extend(answers)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(_NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return tally

    def in_background(self) -> Background:
        """Users that keep sending until told to stop; a context manager."""
        return Background(self)


class Background:
    """Traffic that goes on while something else happens, bounded in time."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(_NUM_CLIENTS)]
        self.tally = Tally()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, first: int) -> None:
        users, answers = self._users, []
        client = _Client(users.model, users.http_url, users.grpc_url)
        deadline = time.monotonic() + _MAX_BACKGROUND_S
        for turn, user in _rounds(first):
            if self._stop.is_set() or time.monotonic() > deadline:
                break
            row = (user + turn) % len(users.split.images)
            answers.append(client.ask(f"user-{user:03d}", users.split, row, turn))
        client.close()
        with self._lock:
            self.tally.answers.extend(answers)


def _rounds(first: int) -> Iterator[tuple[int, int]]:
    turn = 0
    while True:
        for user in range(first, NUM_USERS, _NUM_CLIENTS):
            yield turn, user
        turn += 1
