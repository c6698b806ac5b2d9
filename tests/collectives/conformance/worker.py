"""One rank under test: joins groups and runs the requested cases.

Invariant: an answer for every command, a list of complaints, which is empty if all was right.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import collectives
from collectives.rendezvous import secret
from tests.collectives.conformance.case import Case
from tests.collectives.conformance.cases import cases, run
from tests.collectives.conformance.ranks import OPERATION


class Worker:
    def __init__(self) -> None:
        self._comm: collectives.Communicator | None = None

    @property
    def comm(self) -> collectives.Communicator:
        assert self._comm is not None
        return self._comm

    def handle(self, command: dict[str, Any]) -> list[str]:
        match command["do"]:
            case "join":
                self._comm = collectives.init(
                    command["store"],
                    rank=command["rank"],
                    size=command["size"],
                    name=command["name"],
                    transport=command["transport"],
                    timeout=OPERATION,
                    join_timeout=OPERATION,
                    secret=secret.read(command["secret"]) if command["secret"] else None,
                    segment=command["segment"],
                )
                return []
            case "leave":
                self.close()
                return []
            case "all":
                which = cases(command["collective"], self.comm.size, command["thorough"], command["largest"])
                return self._run(list(which))
            case "case":
                return self._run([Case.from_json(command["case"])])
        raise ValueError(f"unknown command {command}")

    def _run(self, todo: list[Case]) -> list[str]:
        complaints: list[str] = []
        for case in todo:
            try:
                wrong = run(self.comm, case)
            except collectives.CollectiveError as error:
                # The communicator is broken, or ranks are no longer at the same case: nothing after it can work.
                return [*complaints, f"{case}: {type(error).__name__}: {error}"]
            except Exception:
                wrong = traceback.format_exc()
            if wrong:
                complaints.append(f"{case}: {wrong}")
        return complaints

    def close(self) -> None:
        if self._comm is not None:
            self._comm.close()
            self._comm = None


def serve(commands: Iterable[dict[str, Any]], answer: Callable[[Any], None]) -> None:
    worker = Worker()
    try:
        for command in commands:
            try:
                answer(worker.handle(command))
            except Exception:
                answer([traceback.format_exc()])
    finally:
        worker.close()


def main() -> None:
    def answer(value: Any) -> None:
        print(json.dumps(value), flush=True)

    answer("begun")
    serve((json.loads(line) for line in sys.stdin), answer)


if __name__ == "__main__":
    main()
