# Attempts of a hostile command on the worker that started it. Prints one JSON object with the attempts and their results:
# `all` for every process of the worker's program, `init` for process 1, which is the worker.
import errno, json, os, subprocess

result = {}


def attempt(name, act):
    try:
        result[name] = act() or "done"
    except OSError as error:
        result[name] = errno.errorcode.get(error.errno, str(error))


def read(path):
    with open(path, "rb") as file:
        file.read(16)


def write(path, text=b"forged\n"):
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def update(path):
    os.close(os.open(path, os.O_RDWR))


def workers():
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/comm") as file:
                if file.read().strip() == "gantry-worker":
                    yield process
        except OSError:
            pass


found = sorted(workers(), key=int)
result["workers"] = len(found)
for process in found:
    here = f"/proc/{process}"
    attempt("read memory", lambda: read(here + "/mem"))
    attempt("change memory", lambda: update(here + "/mem"))
    attempt("memory by its thread", lambda: update(f"{here}/task/{process}/mem"))
    attempt("environment", lambda: read(here + "/environ"))
    attempt("map", lambda: read(here + "/maps"))
    attempt("auxiliary vector", lambda: read(here + "/auxv"))
    attempt("descriptors", lambda: os.listdir(here + "/fd") and None)
    attempt("standard output", lambda: write(here + "/fd/1"))
    attempt("standard error", lambda: write(here + "/fd/2"))
    attempt("program", lambda: os.readlink(here + "/exe") and None)
    attempt("working directory", lambda: os.readlink(here + "/cwd") and None)
    attempt("memory killer", lambda: write(here + "/oom_score_adj", b"1000"))
attempt("read the program", lambda: read("/usr/local/bin/gantry-worker"))
attempt("init's standard output", lambda: write("/proc/1/fd/1"))
with open("/proc/1/comm") as comm:
    result["init"] = comm.read().strip()

# The checks above are valid only if a command can inspect an ordinary process.
sleeper = subprocess.Popen(["sleep", "60"])
attempt("an ordinary process", lambda: read(f"/proc/{sleeper.pid}/environ"))
sleeper.kill()
sleeper.wait()
version = subprocess.run(["/usr/local/bin/gantry-worker", "--version"], capture_output=True, text=True)
result["the program runs"] = version.stdout.startswith("gantry-worker ")
with open("/proc/self/oom_score_adj") as file:
    result["own memory killer"] = file.read().strip()
print(json.dumps(result))
