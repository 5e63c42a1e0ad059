# Attempts of a hostile agent in its container. Prints one JSON object with the attempts and their results.
# Arguments: another job's id, then secrets to look for, each reversed, so that this command line is not found itself.
import ctypes, errno, http.client, json, os, platform, socket, stat, sys

told = {}
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def attempt(name, act):
    try:
        told[name] = act() or "done"
    except socket.gaierror:
        told[name] = "no name"
    except OSError as error:
        told[name] = errno.errorcode.get(error.errno, str(error))


def call(name, function, *arguments):
    if function(*arguments) == -1:
        told[name] = errno.errorcode[ctypes.get_errno()]
    else:
        told[name] = "done"


def numbered(name, x86, arm, *arguments):
    call(name, libc.syscall, ctypes.c_long(x86 if X86 else arm), *(ctypes.c_long(one) for one in arguments))


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as out:
        out.settimeout(3)
        out.connect(address)


def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(b"x", address)


def open_socket(family, kind=socket.SOCK_RAW, protocol=0):
    socket.socket(family, kind, protocol).close()


def write(path):
    with open(path, "w") as out:
        out.write("x")


def execute(path):
    with open(path, "w") as out:
        out.write("#!/bin/sh\nexit 0\n")
    os.chmod(path, 0o755)
    os.execv(path, [path])


class Line(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/gantry/worker.sock")


def ask(path, token):
    line = Line("gantry", timeout=10)
    line.request("GET", path, headers={"Authorization": "Bearer " + token} if token else {})
    return line.getresponse().status


def walk(root, seen):
    device = os.lstat(root).st_dev
    for directory, directories, files in os.walk(root):
        directories[:] = [one for one in directories if os.lstat(os.path.join(directory, one)).st_dev == device]
        for name in files:
            path = os.path.join(directory, name)
            try:
                seen(path, os.lstat(path))
            except OSError:
                pass


def find():
    sockets, risen, found = [], [], []
    secrets = [one[::-1].encode() for one in sys.argv[2:]]

    def look(path, facts):
        if stat.S_ISSOCK(facts.st_mode):
            sockets.append(path)
        if stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o6000:
            risen.append(path)
        if stat.S_ISREG(facts.st_mode) and facts.st_size < 4 << 20 and not path.startswith(("/usr/lib", "/usr/share")):
            search(path)

    def search(path):
        try:
            with open(path, "rb") as file:
                content = file.read(8 << 20)
        except OSError:
            return
        if any(one in content for one in secrets):
            found.append(path)

    for root in ["/", "/run/gantry", "/workspace", "/tmp", "/home/agent", "/dev", "/dev/shm"]:
        walk(root, look)
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ["environ", "cmdline"]:
            search(f"/proc/{process}/{name}")
    for path in ["/proc/1/mountinfo", "/proc/self/mountinfo", "/proc/cmdline", "/proc/mounts"]:
        search(path)
    told.update(sockets=sorted(set(sockets)), risen=sorted(set(risen)), secrets=sorted(set(found)))
    told["searched processes"] = sum(
        1 for process in filter(str.isdigit, os.listdir("/proc")) if os.access(f"/proc/{process}/environ", os.R_OK)
    )


told["interfaces"] = os.listdir("/sys/class/net")
told["routes"] = len(open("/proc/net/route").readlines()) - 1
attempt("tcp4", lambda: connect(socket.AF_INET, ("1.1.1.1", 443)))
attempt("tcp6", lambda: connect(socket.AF_INET6, ("2606:4700:4700::1111", 443)))
attempt("metadata", lambda: connect(socket.AF_INET, ("169.254.169.254", 80)))
attempt("gateway", lambda: connect(socket.AF_INET, ("172.17.0.1", 22)))
attempt("udp", lambda: send(("8.8.8.8", 53)))
attempt("dns", lambda: socket.getaddrinfo("example.com", 443) and None)
attempt("packet", lambda: open_socket(socket.AF_PACKET))
attempt("raw", lambda: open_socket(socket.AF_INET, protocol=socket.IPPROTO_ICMP))
attempt("udp socket", lambda: open_socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("mptcp", lambda: open_socket(socket.AF_INET, socket.SOCK_STREAM, 262))
attempt("alg", lambda: open_socket(socket.AF_ALG, socket.SOCK_SEQPACKET))
attempt("vsock", lambda: open_socket(socket.AF_VSOCK, socket.SOCK_STREAM))

call("mount", libc.mount, b"none", b"/tmp", b"tmpfs", 0, None)
call("unshare user", libc.unshare, 0x10000000)
call("unshare net", libc.unshare, 0x40000000)
call("unshare mount", libc.unshare, 0x00020000)
call("chroot", libc.chroot, b"/tmp")
numbered("ptrace", 101, 117, 16, os.getppid(), 0, 0)
numbered("process_vm_readv", 310, 270, os.getppid(), 0, 0, 0, 0, 0)
numbered("bpf", 321, 280, 0, 0, 0)
numbered("keyctl", 250, 219, 0, -3, 0)
numbered("add_key", 248, 217, 0, 0, 0, 0, 0)
numbered("io_uring", 425, 425, 1, 0)
numbered("userfaultfd", 323, 282, 0)
numbered("perf", 298, 241, 0, 0, -1, -1, 0)
numbered("open_by_handle", 304, 265, 0, 0, 0)
numbered("kexec", 246, 104, 0, 0, 0, 0)
numbered("aio", 206, 0, 1, 0)
numbered("mq_open", 240, 180, 0, 0, 0, 0)
numbered("semget", 64, 190, 0, 1, 0o1600)
numbered("msgget", 68, 186, 0, 0o1600)
numbered("name_to_handle_at", 303, 264, 0, 0, 0, 0, 0)
numbered("memfd_secret", 447, 447, 0)


def set_aside():
    with open("/workspace/room", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 100_000)
    size = os.stat("/workspace/room").st_size
    os.unlink("/workspace/room")
    return size


told["fallocate falls back"] = set_aside()

for path in ["/x", "/etc/x", "/usr/local/bin/gantry-worker", "/run/gantry/x", "/run/gantry/token"]:
    attempt("write " + path, lambda: write(path))
for path in ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/fs/cgroup/cgroup.procs"]:
    attempt("write " + path, lambda: write(path))
attempt("remove socket", lambda: os.unlink("/run/gantry/worker.sock"))
attempt("replace socket", lambda: os.rename("/run/gantry/token", "/run/gantry/worker.sock"))
attempt("device", lambda: os.mknod("/workspace/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)))
attempt("execute in /tmp", lambda: execute("/tmp/x"))
told["root is read-only"] = bool(os.statvfs("/").f_flag & os.ST_RDONLY)
told["run directory is read-only"] = bool(os.statvfs("/run/gantry").f_flag & os.ST_RDONLY)
told["run directory"] = sorted(os.listdir("/run/gantry"))
told["engine sockets"] = [p for p in ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd"] if os.path.exists(p)]
told["environment"] = sorted(os.environ)
find()

status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
told["status"] = {name: status[name] for name in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"]}
told["ids"] = [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups()]

# The test copied the token before the worker opened its session. It must be useless.
token = open("stolen").read() if os.path.exists("stolen") else "none"
mine = sys.argv[1].split(",")[0]
other = sys.argv[1].split(",")[1]
told["ask"] = {
    "own job": ask(f"/worker/{mine}/job", token),
    "own job, no token": ask(f"/worker/{mine}/job", None),
    "own job, cut token": ask(f"/worker/{mine}/job", token[:-2]),
    "other job": ask(f"/worker/{other}/job", token),
    "other job's prompts": ask(f"/worker/{other}/prompt?wait_seconds=0", token),
    "public jobs": ask("/api/jobs", token),
    "public job": ask(f"/api/jobs/{mine}", token),
    "readiness": ask("/readyz", token),
    "document": ask("/api/openapi.json", token),
}
print(json.dumps(told))
