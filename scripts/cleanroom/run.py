"""From an empty Debian 12 root to a first answer, in three ways: see scripts/clean-root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from dockerfile import Stage, copied, image_of, stages

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 60
"""Seconds from the empty root to the first answer."""
LARGEST = 150_000_000
"""Bytes of the container's root, without Codex."""
KEY = "a-key-for-the-clean-root"
PORT = 11499
APT = "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# What the image debian:12-slim leaves out of a minimal Debian, so that sizes can be compared with it.
NOT_SLIM = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "var/lib/apt/lists",
    "var/cache/apt",
)


def say(text: str) -> None:
    print(f"-- {text}", file=sys.stderr, flush=True)


def base_root() -> Path:
    """A minimal Debian 12, made once."""
    caches = (
        os.environ.get("TURNBRIDGE_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/turnbridge"
    )
    base = Path(caches) / "debian-12"
    if not base.exists():
        say("making a minimal Debian 12 with debootstrap (two minutes, once)")
        base.parent.mkdir(parents=True, exist_ok=True)
        new = base.with_name("debian-12.new")
        shutil.rmtree(new, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", new], check=True, stdout=subprocess.DEVNULL)
        new.rename(base)
    return base


class CleanRoot:
    """A copy of the empty root, in which commands run as in a machine of its own."""

    def __init__(self, path: Path, *, empty: bool = False) -> None:
        self.path = path
        path.mkdir()
        if not empty:
            subprocess.run(["cp", "-a", "--reflink=auto", f"{base_root()}/.", path], check=True)
        for name in ("etc", "tmp"):
            (path / name).mkdir(exist_ok=True)
        # This machine's way to the network: its resolver, and the certificate authorities that it trusts.
        shutil.copy("/etc/resolv.conf", path / "etc/resolv.conf")
        self.settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        if CERTIFICATES.exists():
            (path / "tmp/authorities.pem").write_bytes(CERTIFICATES.read_bytes())
            self.settings |= {"PIP_CERT": "/tmp/authorities.pem"}

    def command(
        self, words: Sequence[str], *, user: str = "0:0", directory: str = "/", read_only: Sequence[str] | None = None
    ) -> list[str]:
        """The command line that runs `words` in the root. `read_only` names the directories that stay writable."""
        script = f"mount --bind {self.path} {self.path} && mount -t proc proc {self.path}/proc"
        script += f" && mount --rbind /dev {self.path}/dev"
        if read_only is not None:
            for name in read_only:
                script += f" && mount --bind {self.path}{name} {self.path}{name}"
            script += f" && mount -o remount,bind,ro {self.path} && mount -t tmpfs tmpfs {self.path}/tmp"
        script += ' && exec /usr/sbin/chroot --userspec="$1" "$2" /bin/sh -c \'cd "$0" && exec "$@"\' "$3" "$@"'
        # The first three arguments are for chroot and cd, the others are the command.
        script = script.replace('"$3" "$@"', '"$3" "${@:4}"')
        return ["unshare", "--mount", "bash", "-c", script, "bash", user, str(self.path), directory, *words]

    def run(self, script: str, environment: dict[str, str] | None = None, directory: str = "/") -> None:
        start = time.monotonic()
        done = subprocess.run(
            self.command(["sh", "-ec", script], directory=directory),
            env=self.environment(environment or {}),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode != 0:
            printed = done.stdout[-2000:] + done.stderr[-2000:]
            raise SystemExit(f"error: in the clean root `{script}` ended with {done.returncode}:\n{printed}")
        say(f"{time.monotonic() - start:5.1f} s  {' '.join(script.split())[:90]}")

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **self.settings, **more}

    def size(self) -> int:
        """Bytes of all files, without what the image does not have either."""
        for name in NOT_SLIM:
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / "tmp/authorities.pem").unlink(missing_ok=True)
        done = subprocess.run(
            ["du", "-sx", "--apparent-size", "--block-size=1", self.path], capture_output=True, text=True, check=True
        )
        return int(done.stdout.split()[0])


@contextmanager
def serving(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """A bridge in a root, until it has answered."""
    given = environment | {"PORT": str(PORT), "PROXY_MOCK_ONLY": "1", "PROXY_API_KEY": KEY}
    process = subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit(f"error: the bridge did not start: {line!r}")
        yield
    finally:
        process.terminate()
        process.wait(30)


def ask() -> None:
    body = json.dumps({"model": "mock-echo", "input": "hello"}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/responses", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        if '"text":"hello"' not in (text := answer.read().decode()):
            raise SystemExit(f"error: not the expected answer: {text[:500]}")


def from_wheel(scratch: Path) -> float:
    built = scratch / "built"
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", built, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    (wheel,) = built.glob("*.whl")
    root = CleanRoot(scratch / "wheel")
    shutil.copy(wheel, root.path / "root")
    start = time.monotonic()
    root.run(f"{APT} python3-venv")
    root.run(f"python3 -m venv /root/turnbridge && /root/turnbridge/bin/pip install --quiet /root/{wheel.name}")
    with serving(root.command(["/root/turnbridge/bin/turnbridge", "serve"]), root.environment({})):
        ask()
        return time.monotonic() - start


def from_checkout(scratch: Path) -> float:
    root = CleanRoot(scratch / "checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        target = root.path / "root/turnbridge" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    start = time.monotonic()
    root.run(f"{APT} python3-venv")
    command = root.command(["scripts/serve", "--mock-only"], directory="/root/turnbridge")
    with serving(command, root.environment({})):
        ask()
        return time.monotonic() - start


def from_container(scratch: Path) -> float:
    """The steps of deploy/Dockerfile, then its command as its user on a read-only root, and its health check."""
    found = stages((ROOT / "deploy/Dockerfile").read_text())
    roots = {
        stage.name: CleanRoot(scratch / f"container-{stage.name or 'last'}", empty=stage.base == "scratch")
        for stage in found
    }
    built: dict[str, Future[CleanRoot]] = {}
    start = time.monotonic()
    # As a container engine does: all stages at once, and a COPY waits for the stage that it copies from.
    with ThreadPoolExecutor(len(found)) as pool:
        for stage in found:
            built[stage.name] = pool.submit(build_stage, stage, roots[stage.name], built)
    image, root = image_of(found[-1]), built[found[-1].name].result()

    def inside(words: list[str]) -> list[str]:
        return root.command(words, user=image.user, directory=image.directory, read_only=image.volumes)

    variables = root.environment({}) | image.environment
    with serving(inside(image.command), variables):
        ask()
        seconds = time.monotonic() - start
        subprocess.run(inside(image.health), env=variables | {"PORT": str(PORT)}, check=True)
        refused = subprocess.run(
            inside(["sh", "-c", "echo > /opt/written"]), env=variables, check=False, capture_output=True
        )
        if b"Read-only file system" not in refused.stderr:
            raise SystemExit(f"error: the root is not read-only: {refused}")
    if (
        subprocess.run(
            inside(image.health), env=variables | {"PORT": str(PORT)}, check=False, capture_output=True
        ).returncode
        == 0
    ):
        raise SystemExit("error: the health check passes though nothing serves")
    size = root.size()
    print(f"container: {size / 1e6:.0f} MB (at most {LARGEST / 1e6:.0f})")
    if size > LARGEST:
        raise SystemExit("error: the container is too large")
    return seconds


def build_stage(stage: Stage, root: CleanRoot, built: Mapping[str, Future[CleanRoot]]) -> CleanRoot:
    environment: dict[str, str] = {}
    directory = "/"
    for word, rest in stage.steps:
        if word == "RUN":
            root.run(rest, environment, directory)
        elif word == "COPY":
            step = copied(rest)
            context = built[step.stage].result().path if step.stage else ROOT
            for source in step.sources:
                copy(
                    context / source.lstrip("/"), root.path / str(Path(directory) / step.target).lstrip("/"), step.owner
                )
        elif word == "WORKDIR":
            directory = rest
            (root.path / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word in ("ENV", "ARG"):
            name, _, value = rest.partition("=")
            environment[name] = value
    return root


def copy(origin: Path, target: Path, owner: str) -> None:
    """The contents of a directory, or a file."""
    if origin.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", f"{origin}/.", target], check=True)
    else:
        shutil.copy(origin, target)
    if owner:
        subprocess.run(["chown", "-R", owner, target], check=True)


WAYS: dict[str, Callable[[Path], float]] = {"wheel": from_wheel, "checkout": from_checkout, "container": from_container}


def main() -> int:
    base_root()
    slow = False
    for name in sys.argv[1:] or WAYS:
        with tempfile.TemporaryDirectory(prefix="turnbridge-clean-") as scratch:
            seconds = WAYS[name](Path(scratch))
        print(f"{name}: {seconds:.0f} s from an empty Debian 12 to the first answer (at most {LIMIT})", flush=True)
        slow |= seconds > LIMIT
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
