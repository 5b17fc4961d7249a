"""Downloads from a package index: both page formats, retries, and messages that help."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recipes.swe.tasks_fetch import Fetcher, FetchError, default_index, find_index
from recipes.swe.tasks_projects import Download

DATA = b"the file"
WANTED = Download("tiny", "tiny-1.0.tar.gz", hashlib.sha256(DATA).hexdigest())

type Answer = tuple[int, str, bytes]


class Index:
    """A local index whose answers a test sets; remembers what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], Answer]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.cut_off: list[str] = []
        """Paths whose next answer breaks off in the middle."""
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the name is http.server's
                index.asked.append((self.path, self.headers.get("Authorization")))
                status, kind, body = index.answers.get(self.path, lambda: (404, "text/plain", b""))()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.path in index.cut_off:
                    index.cut_off.remove(self.path)
                    body = body[: len(body) // 2]
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"


@pytest.fixture
def index() -> Iterator[Index]:
    """An index with the file, listed on an HTML page."""
    served = Index()
    page = b'<a href="../../files/tiny-1.0.tar.gz#sha256=00">tiny-1.0.tar.gz</a>'
    served.answers["/simple/tiny/"] = lambda: (200, "text/html", page)
    served.answers["/files/tiny-1.0.tar.gz"] = lambda: (200, "application/gzip", DATA)
    threading.Thread(target=served.server.serve_forever, args=(0.01,), daemon=True).start()
    yield served
    served.server.shutdown()
    served.server.server_close()


def test_html_page(index: Index, tmp_path: Path) -> None:
    fetcher = Fetcher(index.url, tmp_path, wait_s=0.01)
    assert fetcher.fetch(WANTED).read_bytes() == DATA
    asked = len(index.asked)
    fetcher.fetch(WANTED)
    assert len(index.asked) == asked  # verified where it lies


def test_json_page(index: Index, tmp_path: Path) -> None:
    files = {"files": [{"filename": WANTED.file, "url": "/files/tiny-1.0.tar.gz", "hashes": {}}]}
    body = json.dumps(files).encode()
    index.answers["/simple/tiny/"] = lambda: (200, "application/vnd.pypi.simple.v1+json", body)
    assert Fetcher(index.url, tmp_path).fetch(WANTED).read_bytes() == DATA


def test_failures_of_a_server_are_retried(index: Index, tmp_path: Path) -> None:
    good = index.answers["/simple/tiny/"]
    left = [(503, "text/plain", b""), (500, "text/plain", b"")]
    index.answers["/simple/tiny/"] = lambda: left.pop() if left else good()
    Fetcher(index.url, tmp_path, wait_s=0.01).fetch(WANTED)


def test_a_download_that_breaks_off_is_tried_again(index: Index, tmp_path: Path) -> None:
    index.cut_off = ["/files/tiny-1.0.tar.gz", "/simple/tiny/", "/files/tiny-1.0.tar.gz"]
    assert Fetcher(index.url, tmp_path, wait_s=0.01).fetch(WANTED).read_bytes() == DATA
    index.cut_off = ["/files/tiny-1.0.tar.gz"] * 3
    with pytest.raises(FetchError, match="cut off after 4 of 8 bytes"):
        Fetcher(index.url, tmp_path / "other", wait_s=0.01).fetch(WANTED)
    assert not (tmp_path / "other").exists()


def test_one_of_the_locked_hashes_is_taken(index: Index, tmp_path: Path) -> None:
    fetcher = Fetcher(index.url, tmp_path, wait_s=0.01)
    assert fetcher.files_of("tiny") == [WANTED.file]
    assert fetcher.fetch_one_of("tiny", WANTED.file, ["0" * 64]) is None and not list(tmp_path.iterdir())
    assert fetcher.fetch_one_of("tiny", WANTED.file, ["0" * 64, WANTED.sha256]) == WANTED.sha256
    assert (tmp_path / WANTED.file).read_bytes() == DATA


def test_hosts_of_an_index_are_those_of_its_pages(index: Index, tmp_path: Path) -> None:
    page = b'<a href="https://files.example/tiny-1.0.tar.gz">tiny-1.0.tar.gz</a><a href="x/y.whl">y</a>'
    index.answers["/simple/tiny/"] = lambda: (200, "text/html", page)
    fetcher = Fetcher(index.url, tmp_path, wait_s=0.01)
    own = index.url.split("/")[2]
    assert fetcher.hosts() == (own,)  # it has no page of pip
    fetcher.files_of("tiny")
    assert fetcher.hosts() == (own, "files.example")


def test_wrong_content_is_refused_and_not_kept(index: Index, tmp_path: Path) -> None:
    index.answers["/files/tiny-1.0.tar.gz"] = lambda: (200, "application/gzip", b"something else")
    with pytest.raises(FetchError, match="is expected"):
        Fetcher(index.url, tmp_path).fetch(WANTED)
    assert not list(tmp_path.iterdir())


def test_damaged_file_is_fetched_again(index: Index, tmp_path: Path) -> None:
    (tmp_path / WANTED.file).write_bytes(b"half")
    assert Fetcher(index.url, tmp_path).fetch(WANTED).read_bytes() == DATA


def test_missing_project_and_file(index: Index, tmp_path: Path) -> None:
    fetcher = Fetcher(index.url, tmp_path, wait_s=0.01)
    with pytest.raises(FetchError, match="404"):
        fetcher.fetch(Download("other", "other-1.tar.gz", WANTED.sha256))
    assert len(index.asked) == 1  # asking again would not help
    with pytest.raises(FetchError, match="does not list tiny-2"):
        fetcher.fetch(Download("tiny", "tiny-2.0.tar.gz", WANTED.sha256))


def test_credentials_are_sent_and_never_shown(index: Index, tmp_path: Path) -> None:
    url = index.url.replace("http://", "http://user:secret@")
    Fetcher(url, tmp_path).fetch(WANTED)
    assert index.asked[0][1] == "Basic dXNlcjpzZWNyZXQ="
    with pytest.raises(FetchError) as caught:
        Fetcher(url, tmp_path, wait_s=0.01).fetch(Download("other", "x", WANTED.sha256))
    assert "secret" not in str(caught.value)


def test_dead_index_says_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="PIP_INDEX_URL"):
        Fetcher("http://127.0.0.1:9/simple", tmp_path, attempts=2, wait_s=0.01).fetch(WANTED)


def test_index_is_found_as_pip_finds_it(tmp_path: Path) -> None:
    assert find_index({"PIP_INDEX_URL": "https://one/simple"}, tmp_path) == "https://one/simple"
    config = tmp_path / "config"
    config.write_text("[global]\nindex-url = https://two/simple\n")
    environ = {"PIP_CONFIG_FILE": str(config), "XDG_CONFIG_HOME": str(tmp_path / "none")}
    assert find_index(environ, tmp_path) == "https://two/simple"
    (tmp_path / ".pip").mkdir()
    (tmp_path / ".pip" / "pip.conf").write_text("[global]\ntimeout = 1\n")
    found = find_index({"XDG_CONFIG_HOME": str(tmp_path / "none")}, tmp_path)
    assert found == default_index() or found.startswith(("http", "file"))
    config.write_text("no section\n")
    with pytest.raises(FetchError, match="cannot be read"):
        find_index(environ, tmp_path)
