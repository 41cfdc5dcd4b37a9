"""A Kubernetes API server for tests.

    import kelson

    with kelson.start(crds=["config/crd"]) as server:
        kubernetes.config.load_kube_config(server.kubeconfig)

It needs the program kelson on PATH, or its path in KELSON_BINARY, and nothing but the
standard library. It is built on 'kelson run', which stops the server when the command that
it runs ends; that command is a small Python that prints KUBECONFIG and waits until its
standard input is closed. So a test that crashes leaves nothing behind.
"""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

_CHILD = """import os, sys
print(*(os.environ[name] for name in ("KUBECONFIG", "KELSON_CONTROL", "KELSON_CONTROL_TOKEN")), sep="\\0", flush=True)
sys.stdin.read()"""


class Error(Exception):
    """The server did not start, or did not end as it should."""


class Control:
    """Brings back a state of a server, makes requests fail, and moves its clock."""

    def __init__(self, url, token):
        self._url, self._token = url, token

    def ask(self, method, path, body=None):
        """Send a request to the endpoint of 'kelson run', and return its answer."""
        request = urllib.request.Request(
            self._url + path, method=method, headers={"Authorization": "Bearer " + self._token}, data=None if body is None else json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as err:
            with err:
                raise Error(json.load(err)["error"]) from None

    def save(self, name="default"):
        """Keep the state of the server under a name."""
        self.ask("POST", "/snapshots", {"name": name})

    def restore(self, name="default"):
        """Bring a state back. Watches see it as changes."""
        self.ask("POST", "/restore", {"name": name})

    def apply(self, *paths):
        """Install files or folders."""
        self.ask("POST", "/apply", {"paths": [str(p) for p in paths]})

    def user(self, name, groups=()):
        """Return the path of a kubeconfig for a user."""
        return self.ask("POST", "/users", {"name": name, "groups": list(groups)})["kubeconfig"]

    def fault(self, **fault):
        """Add a fault, such as rule={"verb": "create"}, fail={"code": 503}, times=1, and return its number."""
        return self.ask("POST", "/faults", fault)["fault"]

    def hits(self):
        """Return how often each fault met a request."""
        return self.ask("GET", "/faults")["hits"]

    def clear_faults(self):
        """Remove all faults."""
        self.ask("DELETE", "/faults")

    def end_watches(self, **rule):
        """End watches, and return how many."""
        return self.ask("POST", "/end-watches", rule)["ended"]

    def compact(self):
        """Forget the history, so that clients have to list again."""
        self.ask("POST", "/compact", {})

    def clock(self, **change):
        """Change the server's clock (freeze, advance, resume, reset), and return what it shows."""
        return self.ask("POST", "/clock", change)["now"]


class Server:
    """A server that is ready. kubeconfig is the path of a file for clients."""

    def __init__(self, process, stderr, kubeconfig, control):
        self._process, self._stderr = process, stderr
        self.kubeconfig, self.control = kubeconfig, control

    def stop(self):
        """Stop the server. What it kept in memory is gone. A second call does nothing."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.stdin.close()
        code = process.wait()
        process.stdout.close()
        text = _read(self._stderr)
        if code != 0:
            raise Error(f"kelson ended with exit code {code}: {text}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def start(*, binary=None, crds=(), manifests=(), user=None, groups=(), keep=None, timeout=30):
    """Start a server that keeps nothing, and return it when it is ready.

    crds and manifests are files or folders that are installed before; user is whom the
    kubeconfig is for, without rights but those that the manifests give, and groups are
    those of the user; keep is a folder in which the data stays; timeout is in seconds.
    """
    binary = binary or os.environ.get("KELSON_BINARY") or "kelson"
    command = [binary, "run"]
    for flag, values in (("--crds", crds), ("--manifests", manifests), ("--as-group", groups)):
        for value in values:
            command += [flag, str(value)]
    for flag, value in (("--as", user), ("--keep", keep)):
        if value is not None:
            command += [flag, str(value)]
    command += ["--", sys.executable, "-c", _CHILD]

    stderr = tempfile.TemporaryFile()
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    except FileNotFoundError as err:
        stderr.close()
        raise Error(f"the program {binary} was not found: install kelson, or set KELSON_BINARY to its path") from err
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        ready = selector.select(timeout)
    line = process.stdout.readline().decode().rstrip("\n") if ready else ""
    if line:
        kubeconfig, url, token = line.split("\0")
        return Server(process, stderr, kubeconfig, Control(url, token))
    process.stdin.close()
    if not ready:
        process.terminate()
    code = process.wait()
    process.stdout.close()
    text = _read(stderr)
    if not ready:
        raise Error(f"kelson was not ready within {timeout} seconds: {text}")
    raise Error(f"kelson ended with exit code {code}: {text}")


def _read(stderr):
    stderr.seek(0)
    with stderr:
        return stderr.read().decode(errors="replace").strip()
