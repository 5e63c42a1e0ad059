"""Checks the public API with a Python client that is generated from its OpenAPI document.

    openapi-python-client generate --path openapi.json --output-path DIR/gantry_client --meta none --fail-on-warning
    PYTHONPATH=DIR GANTRY_URL=http://127.0.0.1:PORT GANTRY_TOKEN=… python tests/clients/check_api.py

A job from its creation to its cancellation, with its events by pages. The server's model must be the built-in script.
"""

import io
import json
import os
import tarfile
import time

from gantry_client import AuthenticatedClient
from gantry_client.api.chat import send_message
from gantry_client.api.files import download_archive, list_files, read_file, write_file
from gantry_client.api.jobs import cancel_job, create_job, get_job, list_events, list_jobs, prompt_job
from gantry_client.api.operation import get_usage
from gantry_client.api.routines import create_routine, list_routines
from gantry_client.models import (
    CreateJob,
    CreateJobLabels,
    CreateRoutine,
    ErrorCode,
    EventPage,
    InputFile,
    Job,
    JobState,
    JobSummaryPage,
    LightweightRoutineAction,
    ManualRoutineTrigger,
    MessageEvent,
    MessageReceipt,
    MessageRole,
    Problem,
    PromptReceipt,
    PromptRequest,
    SendMessage,
    StateEvent,
    ToolResultEvent,
    ToolUseEvent,
)
from gantry_client.types import File

client = AuthenticatedClient(base_url=os.environ["GANTRY_URL"], token=os.environ["GANTRY_TOKEN"], raise_on_unexpected_status=True)


def events_after(job, seq):
    """The events after `seq`, with the last `seq`."""
    page = list_events.sync(job, client=client, after=seq, limit=200)
    assert isinstance(page, EventPage), page
    return page.items, page.items[-1].seq if page.items else seq


refused = create_job.sync(client=client, body=CreateJob(prompt=""))
assert isinstance(refused, Problem) and refused.code is ErrorCode.INVALID, refused
assert refused.errors[0].field == "prompt", refused

labels = CreateJobLabels.from_dict({"client": "python"})
body = CreateJob(prompt="count slowly", labels=labels, files=[InputFile(path="notes/a.txt", content="from a client")])
created = create_job.sync(client=client, body=body, idempotency_key="check-api-1")
assert isinstance(created, Job) and created.state is JobState.PENDING, created
again = create_job.sync(client=client, body=body, idempotency_key="check-api-1")
assert isinstance(again, Job) and again.id == created.id, again

kinds, last, prompted, cancelled, deadline = set(), 0, False, False, time.monotonic() + 60
finished = None
while finished is None:
    assert time.monotonic() < deadline, (kinds, prompted, cancelled)
    items, last = events_after(created.id, last)
    for event in items:
        kinds.add(event.kind)
        match event:
            case ToolUseEvent():
                assert event.data.tool in ("shell", "write_file"), event
            case ToolResultEvent() if "of 40]" in event.data.output and not prompted:
                prompted = True
                receipt = prompt_job.sync(created.id, client=client, body=PromptRequest(content="count by ten"))
                assert isinstance(receipt, PromptReceipt), receipt
            case MessageEvent() if event.data.role is MessageRole.ASSISTANT and "by ten from here" in event.data.content and not cancelled:
                cancelled = True
                written = write_file.sync(created.id, "b.bin", client=client, body=File(payload=io.BytesIO(b"\x00\xff")))
                assert written.size_bytes == 2, written
                archive = download_archive.sync(created.id, client=client)
                assert isinstance(archive, File), archive
                with tarfile.open(fileobj=archive.payload) as tar:
                    assert tar.extractfile("notes/a.txt").read() == b"from a client"
                # The body is optional.
                stopping = cancel_job.sync(created.id, client=client)
                assert isinstance(stopping, Job) and stopping.cancel_requested_at, stopping
            case StateEvent() if event.data.to is JobState.CANCELLED:
                finished = event
    time.sleep(0.1)
assert prompted and cancelled and {"state", "message", "tool_use", "tool_result", "llm_call", "result"} <= kinds, kinds

job = get_job.sync(created.id, client=client)
assert isinstance(job, Job) and job.state is JobState.CANCELLED and job.finished_at, job
page = list_jobs.sync(client=client, label=["client:python"])
assert isinstance(page, JobSummaryPage) and [item.id for item in page.items] == [created.id], page
paths = [entry.path for entry in list_files.sync(created.id, client=client, path="notes").items]
assert paths == ["notes/a.txt"], paths
assert read_file.sync(created.id, "b.bin", client=client).payload.read() == b"\x00\xff"

action = LightweightRoutineAction(type_="lightweight", prompt="look")
saved = create_routine.sync(client=client, body=CreateRoutine(name="look", trigger=ManualRoutineTrigger(type_="manual"), action=action))
assert not isinstance(saved, Problem) and saved.name == "look", saved
routines = list_routines.sync(client=client)
assert [type(routine.action) for routine in routines.items] == [LightweightRoutineAction], routines
assert isinstance(send_message.sync(client=client, body=SendMessage(content="hello")), MessageReceipt)
assert get_usage.sync(client=client).items, "usage"
print(f"ok    a job with the Python client ({json.dumps(sorted(kinds))})")
