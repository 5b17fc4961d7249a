"""Downloads pinned files from a package index, the way pip finds it, and checks them.

Knows the simple index in both forms (JSON and HTML) over http, https and file. Nothing that is
downloaded is run or imported here: files land in the cache whole and verified, or not at all.
"""

import configparser
import hashlib
import json
import os
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

from recipes.swe.tasks_projects import Download
from sandbox.cache_publish import write_atomically

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
TIMEOUT_S = 30.0
_OTHER_INDEX = "Check the network, or name a reachable package index: PIP_INDEX_URL=https://…/simple"
MAX_BYTES = 512 << 20


class FetchError(Exception):
    """A file could not be had; the message says from where, why and what to change."""


class NotListedError(FetchError):
    """The index answers, but has no such page or file."""


def default_index() -> str:
    """The public index, as pip itself names it. Raises FetchError where pip is not installed."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError as error:
        raise FetchError("no pip here to ask for its index; set PIP_INDEX_URL") from error
    return PyPI.simple_url


def find_index(environ: Mapping[str, str], home: Path) -> str:
    """The index that pip would use: PIP_INDEX_URL, then pip's configuration files, then PyPI."""
    if environ.get("PIP_INDEX_URL"):
        return environ["PIP_INDEX_URL"]
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip" / "pip.conf"]
    files.append(config_home / "pip" / "pip.conf")
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    found: str | None = None
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, "utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            raise FetchError(f"pip's configuration {file} cannot be read: {error}") from error
        for section in ("global", "download"):
            found = parser.get(section, "index-url", fallback=found)
    return found.strip() if found else default_index()


class Fetcher:
    """Fetches files of one index into one directory. Blocking: run it in a thread."""

    def __init__(self, index: str, folder: Path, *, attempts: int = 3, wait_s: float = 0.5) -> None:
        """`attempts` per request, the first wait `wait_s`, doubled each time."""
        self._index = index.rstrip("/")
        self._folder = folder
        self._attempts = attempts
        self._wait_s = wait_s
        self._tls: ssl.SSLContext | None = None
        self._pages: dict[str, dict[str, str]] = {}
        self._said: dict[str, str] = {}

    def fetch(self, wanted: Download) -> Path:
        """Path of the verified file; downloads it unless it is there. Raises FetchError."""
        target = self._folder / wanted.file
        if self.verified(wanted.file, wanted.sha256) is not None:
            return target
        url = self._addresses(wanted.project).get(wanted.file)
        if url is None:
            raise FetchError(f"{_shown(self._page(wanted.project))} does not list {wanted.file}")
        data, _ = self._get(url)
        digest = hashlib.sha256(data).hexdigest()
        if digest != wanted.sha256:
            raise FetchError(f"{_shown(url)} has sha256 {digest}, {wanted.sha256} is expected")
        write_atomically(target, data)
        return target

    def verified(self, file: str, sha256: str) -> Path | None:
        """Path of the file if it lies here already and is what its hash says."""
        target = self._folder / file
        if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == sha256:
            return target
        return None

    def files_of(self, project: str) -> list[str]:
        """Names of all files that the index lists for a project."""
        return list(self._addresses(project))

    def fetch_one_of(self, project: str, file: str, hashes: Collection[str]) -> str | None:
        """sha256 of the file if it is one of `hashes`, and then it lies in the folder; None for any other."""
        target = self._folder / file
        if target.is_file():
            digest = hashlib.sha256(target.read_bytes()).hexdigest()
            if digest in hashes:
                return digest
        url = self._addresses(project)[file]
        said = self._said.get(url)
        if said is not None and said not in hashes:
            return None
        data, _ = self._get(url)
        digest = hashlib.sha256(data).hexdigest()
        if digest not in hashes:
            return None
        write_atomically(target, data)
        return digest

    def hosts(self) -> tuple[str, ...]:
        """Hosts that a client of this index talks to: its own and those that its files lie on, as far as the
        pages tell that were read here."""
        if not self._pages and not self._index.startswith("file:"):
            try:
                self._addresses("pip")
            except NotListedError:
                pass  # a small index of somebody's own
        urls = [self._index, *(url for page in self._pages.values() for url in page.values())]
        return tuple(sorted({netloc for url in urls if (netloc := _host(url))}))

    def _page(self, project: str) -> str:
        return f"{self._index}/{project}/"

    def _addresses(self, project: str) -> dict[str, str]:
        """Address of every file by name; the page is asked for once."""
        if project not in self._pages:
            self._pages[project] = dict(self._links(self._page(project)))
        return self._pages[project]

    def _links(self, page: str) -> Iterator[tuple[str, str]]:
        """(file name, address) of every file on a project's page."""
        data, kind = self._get(page)
        try:
            if "json" in kind:
                for entry in json.loads(data)["files"]:
                    url = urljoin(page, entry["url"])
                    if sha256 := entry.get("hashes", {}).get("sha256"):
                        self._said[url] = sha256
                    yield entry["filename"], url
                return
            parser = _Anchors()
            parser.feed(data.decode("utf-8", "replace"))
        except (ValueError, KeyError, TypeError) as error:
            raise FetchError(f"{_shown(page)} is no page of a package index: {error}") from error
        for link in parser.links:
            url = urldefrag(urljoin(page, link)).url
            yield unquote(urlsplit(url).path.rsplit("/", 1)[-1]), url

    def _get(self, url: str) -> tuple[bytes, str]:
        """Body and content type."""
        try:
            for attempt in Retrying(
                stop=stop_after_attempt(self._attempts),
                wait=wait_exponential(self._wait_s, max=10) + wait_random(0, self._wait_s),
                retry=retry_if_exception(_worth_retrying),
                reraise=True,
            ):
                with attempt:
                    return self._get_once(url)
        except (OSError, ValueError) as error:  # URLError, timeouts, resets and bad addresses
            missing = isinstance(error, urllib.error.HTTPError) and error.code == 404
            if missing or isinstance(getattr(error, "reason", None), FileNotFoundError):
                raise NotListedError(f"{_shown(url)} is not there: {error}. {_OTHER_INDEX}") from error
            raise FetchError(f"{_shown(url)} cannot be read: {error}. {_OTHER_INDEX}") from error
        raise AssertionError("unreachable: the loop returns or raises")

    def _get_once(self, url: str) -> tuple[bytes, str]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "file"):
            raise ValueError(f"{parts.scheme or 'no'} scheme in an address of the index")
        if parts.scheme == "file" and url.endswith("/"):
            url += "index.html"
        headers = {"Accept": ACCEPT, "User-Agent": "swe-minisandbox-recipes"}
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + b64encode(secret.encode()).decode()
            url = urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))
        if self._tls is None and parts.scheme == "https":
            authorities = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
            self._tls = ssl.create_default_context(cafile=authorities or None)
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as response:
            data: bytes = response.read(MAX_BYTES + 1)
            kind: str = response.headers.get("Content-Type", "")
            length: str | None = response.headers.get("Content-Length")
        if len(data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
        if length is not None and length.isdigit() and len(data) < int(length):
            raise ConnectionError(f"cut off after {len(data)} of {length} bytes")
        return data, kind


class _Anchors(HTMLParser):
    """Collects the links of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        if tag == "a":
            self.links.extend(value for name, value in attrs if name == "href" and value)


def _worth_retrying(error: BaseException) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429) or error.code >= 500
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, FileNotFoundError):
        return False
    return isinstance(error, OSError)


def _host(url: str) -> str:
    """`host` or `host:port`, as sandboxes name what they may reach; empty for files."""
    parts = urlsplit(url)
    if not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return host if parts.port is None else f"{host}:{parts.port}"


def _shown(url: str) -> str:
    """The address without credentials."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))
