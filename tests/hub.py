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
def serving(repositories):
    """Serve data sets, name -> {path: bytes}; yield the address and the paths that are fetched."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
