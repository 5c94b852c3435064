"""Stand-ins for what downloads come from: a hub on this machine, and a folder of wheels that pip looks in."""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

COMMIT = "0" * 40


@dataclass
class Hub:
    """Serves `files` by path as a hub does: HEAD and GET of /REPO/resolve/REVISION/NAME, with ranges, and listings.

    `drops_after`: the connection breaks after so many bytes of each answer. `gated`: repositories whose listing is
    public and whose files are not.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""
    drops_after: int | None = None
    gated: set[str] = field(default_factory=set)

    def add(self, repo: str, name: str, content: bytes) -> None:
        """Publish `content` on the main revision."""
        self.files[f"/{repo}/resolve/main/{name}"] = content

    def listing(self, path: str) -> dict[str, Any] | str:
        """The answer to /api/models/REPO/revision/REVISION, or the code of an error."""
        repo, _, revision = path.removeprefix("/api/models/").partition("?")[0].partition("/revision/")
        start = f"/{repo}/resolve/main/"
        found = {
            name.removeprefix(start): data for name, data in self.files.items() if name.startswith(start)
        }
        if not found:
            return "RepoNotFound"
        if revision not in ("", "main", COMMIT):
            return "RevisionNotFound"
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 9},
            }
            for name, data in found.items()
        ]
        return {"id": repo, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}

    @property
    def gets(self) -> list[str | None]:
        """The Range header of every GET so far."""
        return [wanted for method, wanted in self.requests if method == "GET"]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Run `hub` on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            if self.path.startswith("/api/models/"):
                self.answer_listing()
                return
            if any(self.path.startswith(f"/{repo}/") for repo in hub.gated):
                self.refuse(403, "GatedRepo")
                return
            wanted = self.headers.get("Range")
            content = hub.files.get(self.path.replace(f"/resolve/{COMMIT}/", "/resolve/main/"))
            if content is not None or "/resolve/" in self.path:
                hub.requests.append((self.command, wanted))
            first = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
            self.send_response(404 if content is None else 206 if first else 200)
            rest = (content or b"")[first:]
            self.send_header("Content-Length", str(len(rest)))
            if content is not None:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
            if first:
                self.send_header(
                    "Content-Range", f"bytes {first}-{first + len(rest) - 1}/{len(content or b'')}"
                )
            self.end_headers()
            if body:
                self.wfile.write(rest[: hub.drops_after])
                self.close_connection = hub.drops_after is not None

        def answer_listing(self) -> None:
            found = hub.listing(self.path)
            if isinstance(found, str):
                self.refuse(404, found)
                return
            content = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients may hang up
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """The least that pip accepts as a wheel, holding `members`."""
    name = package.replace("-", "_")
    path = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def point_to(patch: pytest.MonkeyPatch, url: str) -> None:
    """Make huggingface_hub use the hub at this address."""
    from huggingface_hub import constants

    patch.setenv("HF_ENDPOINT", url)
    patch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
