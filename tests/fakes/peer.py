"""Stands in for one process of a worker: does what its job says for its rank, step by step.

["say", EVENT]   writes the event
["tell", VALUE]  tells the others, and says what it hears from all
["about"]        says its scheduling policy and cores
["signal", N]    sends itself a signal
["sleep", S], ["exit", CODE]
"""

from __future__ import annotations

import json
import os
import sys
import time

JOB = json.loads(sys.stdin.readline())


def say(**event) -> None:
    print(json.dumps({**event, "attempt": JOB["attempt"]}), flush=True)


for action, *arguments in JOB["acts"][JOB["place"]["rank"]]:
    match action, *arguments:
        case "say", event:
            say(**event)
        case "tell", value:
            say(event="tell", value=value)
            say(event="phase", phase="heard", arm="", values=json.loads(sys.stdin.readline()))
        case ("about",):
            how = {"policy": os.sched_getscheduler(0), "cores": [*os.sched_getaffinity(0)]}
            say(event="phase", phase="about", arm="", **how)
        case "signal", number:
            os.kill(os.getpid(), number)
        case "sleep", seconds:
            time.sleep(seconds)
        case "exit", code:
            sys.exit(code)
