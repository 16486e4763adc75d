"""A hub of data sets on this machine, for the client of the real one."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "a" * 40
BRANCH = "refs/convert/parquet"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words):
        """Say nothing."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        words = unquote(urlparse(self.path).path).strip("/").split("/")
        words = words[1:] if words[0] == "api" else words
        name, asked, place = "/".join(words[1:3]), "".join(words[3:4]), "/".join(words[4:])
        files = self.server.repositories.get(name)
        if files is None:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif asked == "resolve":
            self.send_file(place.removeprefix(f"{COMMIT}/"), files)
        elif place not in (BRANCH, COMMIT):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif asked == "revision":
            siblings = [{"rfilename": path} for path in files]
            self.send_json({"id": name, "sha": COMMIT, "siblings": siblings})
        else:
            facts = {path: {"size": len(data), "oid": tag(data)} for path, data in files.items()}
            self.send_json([{"type": "file", "path": path, **facts[path]} for path in files])

    def send_file(self, path, files):
        if self.command == "GET":
            self.server.fetched.append(path)
        self.answer(200, files[path], {"X-Repo-Commit": COMMIT, "ETag": f'"{tag(files[path])}"'})

    def send_json(self, value):
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def answer(self, status, data, headers):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@contextmanager
def serving(repositories, handler=Handler):
    """Serve data sets, name -> {path: bytes}; yield the address and the paths that are fetched."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.repositories, server.fetched = repositories, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tag(data):
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


# --- a hub that takes models -------------------------------------------------------------------

BEARER = "hf_owner"


class Upload(Handler):
    """What `create_repo` and `upload_folder` of the client ask for; only OWNER may write."""

    def do_GET(self):
        name = self.path.removeprefix("/api/models/")
        if self.headers.get("Authorization") != f"Bearer {BEARER}":
            self.answer(
                401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"}
            )
        elif self.path == "/api/whoami-v2":
            self.send_json({"name": "owner"})
        elif name in self.server.repositories:
            private = self.server.repositories[name]["private"]
            self.send_json({"id": name, "private": private, "siblings": []})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.fetched.append(body)
        self.answer(200, b"", {})

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        words = self.path.strip("/").split("/")
        if self.path == "/api/repos/create":
            self.create(json.loads(text))
        elif "preupload" in words:
            files = [
                {"path": f["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                for f in json.loads(text)["files"]
            ]  # fmt: skip
            self.send_json({"files": files})
        elif words[-1] == "batch":
            to = f"{self.own()}/put"
            objects = json.loads(text)["objects"]
            self.send_json(
                {"objects": [{**o, "actions": {"upload": {"href": to}}} for o in objects]}
            )
        elif "commit" in words:
            lines = [json.loads(line) for line in text.splitlines()]
            name = "/".join(words[2:4])
            self.server.repositories[name]["commits"].append(lines)
            self.send_json({"commitUrl": f"{self.own()}/{name}/commit/1", "commitOid": COMMIT})
        else:
            self.send_json({})

    def create(self, asked):
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] != "owner":
            self.answer(403, b"", {"X-Error-Message": "You don't have the rights"})
            return
        new = {"private": asked["visibility"] == "private", "commits": []}
        is_there = self.server.repositories.setdefault(name, new) is not new
        url = json.dumps({"url": f"{self.own()}/{name}"})
        self.answer(409 if is_there else 200, url.encode(), {})

    def own(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, status, data, headers):
        super().answer(status, data, headers)
        if self.command != "GET":
            self.wfile.write(data)
