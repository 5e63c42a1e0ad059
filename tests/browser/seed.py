"""Fills the database of a stopped server for the budgets of the dashboard: copies of one finished job, two of them with long histories.

    seed.py DATABASE JOBS EVENTS LARGE_EVENTS

The database has a finished job. Prints the ids of the job with many events and of the one with large events, of 100 KB each.
"""

import json
import sqlite3
import sys
import uuid


def job_id(millis: int, number: int) -> bytes:
    """A UUID of version 7 of a time in milliseconds since 1970."""
    value = millis << 80 | 7 << 76 | 2 << 62 | number
    return value.to_bytes(16, "big")


def event(number: int) -> tuple[str, dict]:
    """What a job that works for a long time records: each fourth event is a call, of which one in fifty fails."""
    call = f"call-{number // 4}"
    match number % 4:
        case 0:
            return "message", {"role": "assistant", "content": f"Step {number}: I look at the next file. " + "x" * 300}
        case 1:
            return "tool_use", {"call_id": call, "tool": "shell", "input": {"command": f"cat file-{number}.txt"}}
        case 2:
            return "log", {"stream": "stdout", "text": f"line {number}\n" * 20, "call_id": call}
        case _:
            result = {"call_id": call, "tool": "shell", "output": f"line {number}\n" * 20, "truncated": False, "duration_ms": 120}
            return "tool_result", {**result, "success": number % 200 != 3}


def large_event(number: int) -> tuple[str, dict]:
    """The longest text of an event."""
    return "message", {"role": "assistant", "content": f"Step {number}: " + "x" * 99_000}


def add_history(db: sqlite3.Connection, job: bytes, at: int, events: list[tuple[str, dict]], title: str) -> None:
    end = ("state", {"from": "in_progress", "to": "completed", "reason": None, "message": None})
    rows = ((job, seq, 1, at, kind, json.dumps(data)) for seq, (kind, data) in enumerate([*events, end], 1))
    db.executemany("INSERT INTO events (job_id, seq, attempt, at, kind, data) VALUES (?, ?, ?, ?, ?, ?)", rows)
    db.execute("UPDATE jobs SET last_seq = ?, title = ? WHERE id = ?", (len(events) + 1, title, job))


def main() -> None:
    database, jobs, events, large_events = sys.argv[1], *map(int, sys.argv[2:])
    db = sqlite3.connect(database)
    # Triggers use a function that this version of SQLite may not have.
    db.create_function("octet_length", 1, lambda value: len(value.encode()) if isinstance(value, str) else len(value or b""), deterministic=True)
    db.row_factory = sqlite3.Row
    template = dict(db.execute("SELECT * FROM jobs WHERE state = 'completed'").fetchone())
    # Without generated columns.
    names = [row["name"] for row in db.execute("PRAGMA table_info(jobs)")]
    # Just before the finished job.
    begin = int.from_bytes(template["id"][:6], "big") - jobs
    insert = f"INSERT INTO jobs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    texts = dict(db.execute("SELECT * FROM job_texts WHERE job_id = ?", [template["id"]]).fetchone())
    insert_texts = f"INSERT INTO job_texts ({', '.join(texts)}) VALUES ({', '.join('?' * len(texts))})"
    for number in range(jobs):
        copy = {**template, "id": job_id(begin + number, number), "title": f"Seeded job {number}", "last_seq": 0, "token_hash": None, "session_hash": None}
        db.execute(insert, [copy[name] for name in names])
        copy = {**texts, "job_id": copy["id"]}
        db.execute(insert_texts, list(copy.values()))
    long, large = (job_id(begin + number, number) for number in (jobs - 1, jobs - 2))
    at = template["created_at"]
    add_history(db, long, at, [event(number) for number in range(events - 1)], "A long history")
    add_history(db, large, at, [large_event(number) for number in range(large_events)], "A large history")
    db.commit()
    print(uuid.UUID(bytes=long), uuid.UUID(bytes=large))


main()
