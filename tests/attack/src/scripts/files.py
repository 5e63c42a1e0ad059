# Attacks on a job's own workspace: `python3 files.py ATTACK [NUMBER...]`. Python's standard library only.
# It creates `started` and prints one line of JSON with what it made. ATTACK is one of ATTACKS, at the end.
import collections, errno, json, os, resource, sys, time

MB = 1_000_000
# Content that is not sparse.
BLOCK = os.urandom(MB)
told = collections.Counter()


def write(directory, name, megabytes):
    """Writes a file of this many megabytes and returns its descriptor."""
    file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644, dir_fd=directory)
    for _ in range(megabytes):
        os.write(file, BLOCK)
        told["written_mb"] += 1
    return file


def descend(depth, name="d"):
    """Creates nested directories and returns the innermost."""
    directory = os.open(".", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    return directory


def tree(directories=190_000, depth=508, seconds=15):
    """Creates empty directories at a large depth: opening each from the top costs one lookup for each level."""
    deadline, directory = time.monotonic() + seconds, descend(depth)
    for number in range(directories):
        if number % 1000 == 0 and time.monotonic() > deadline:
            break
        os.mkdir(str(number), dir_fd=directory)
        told["directories"] += 1
    open("made", "w").close()
    time.sleep(max(0.0, deadline - time.monotonic()))


def rename(megabytes=3_000, depth=500, seconds=15):
    """Writes into a deep directory whose top is renamed continuously, so that a walk by path never reaches it."""
    deadline = time.monotonic() + seconds
    os.mkdir("a")
    os.chdir("a")
    directory = descend(depth)
    os.chdir("..")
    if os.fork() == 0:
        while time.monotonic() < deadline:
            os.rename("a", "b")
            os.rename("b", "a")
        os._exit(0)
    for number in range(megabytes // 25):
        if time.monotonic() > deadline:
            break
        os.close(write(directory, str(number), 25))
    time.sleep(max(0.0, deadline - time.monotonic()))


def unlinked(megabytes=3_000, seconds=15):
    """Writes into unlinked files that are still open."""
    deadline, here, kept = time.monotonic() + seconds, os.open(".", os.O_RDONLY), []
    for _ in range(megabytes // 25):
        if time.monotonic() > deadline:
            break
        kept.append(write(here, "gone", 25))
        os.unlink("gone")
    time.sleep(max(0.0, deadline - time.monotonic()))


def inodes(files=400_000, seconds=15):
    """Creates empty files as fast as possible in 100 directories."""
    deadline = time.monotonic() + seconds
    for number in range(100):
        os.mkdir(str(number))
        directory = os.open(str(number), os.O_RDONLY)
        for name in range(files // 100):
            if name % 500 == 0 and time.monotonic() > deadline:
                break
            os.close(os.open(str(name), os.O_CREAT | os.O_WRONLY, dir_fd=directory))
            told["files"] += 1
    time.sleep(max(0.0, deadline - time.monotonic()))


def packages(files=100_000):
    """Creates what a package installer creates: small files in many nested directories, within the limits."""
    content, made = b"module.exports = {}\n" * 10, 0
    for package in range(files // 100):
        directory = f"node_modules/@scope{package % 50}/package-{package}/lib/internal"
        os.makedirs(directory)
        for name in range(100):
            with open(f"{directory}/{name}.js", "wb") as file:
                file.write(content)
            made += 1
    told["files"] = made


def dd(seconds=2):
    """A plain writer, the baseline of the other attacks."""
    deadline, here, number = time.monotonic() + seconds, os.open(".", os.O_RDONLY), 0
    while time.monotonic() < deadline:
        os.close(write(here, f"dd-{number}", 1))
        number += 1


def ignore_files():
    """Three directories with hostile ignore files: a FIFO, a huge sparse file, a million patterns."""
    names = [".gitignore", ".ignore", ".rgignore"]
    for directory in ["fifo", "sparse", "patterns"]:
        os.makedirs(f"{directory}/.git/info")
        with open(f"{directory}/needle.txt", "w") as file:
            file.write("needle\n")
    for name in names + [".git/info/exclude"]:
        os.mkfifo(f"fifo/{name}")
        with open(f"sparse/{name}", "wb") as file:
            file.truncate(1024 * MB)
        with open(f"patterns/{name}", "w") as file:
            for number in range(1_000_000):
                file.write(f"**/[a-z]{number}*/?{number}.[ch]\n")
    told["ignore_files"] = 3 * len(names) + 3


ATTACKS = {
    "tree": tree,
    "rename": rename,
    "unlinked": unlinked,
    "inodes": inodes,
    "packages": packages,
    "dd": dd,
    "ignore-files": ignore_files,
}


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    open("started", "w").close()
    try:
        ATTACKS[sys.argv[1]](*(int(number) for number in sys.argv[2:]))
    except OSError as error:
        told["stopped_by_" + errno.errorcode.get(error.errno, "?")] += 1
    print(json.dumps(dict(sorted(told.items()))))


if __name__ == "__main__":
    main()
