"""Test files are loaded as they were before any code of the task ran, and test functions stay what they were.

Code under test can rewrite test files at import, plant byte code for them, or exchange the functions of a
loaded test. So: the stamps of all test files are taken first; they are compiled from their source, without
byte code, only while the stamp holds; and the code of a test function is looked at before and after its call.
A stamp is size and the two times; the change time cannot be set by a program without privileges (inode(7)).
What it cannot see: a helper that the product takes the place of in `sys.modules`. Python 3.6 and later.
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import builtins
import importlib.machinery
import operator
import os
import sys
import types

from grader_equal import NAME, Looker, rewrite  # pyright: ignore

ONLY_AST = 0x400  # As ast.PyCF_ONLY_AST.
FOLDERS = frozenset(("test", "tests", "testing"))
SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules", "site-packages"))


def is_test_file(name):
    """By its name alone."""
    stem = name[:-3]
    return stem in ("conftest", "test", "tests") or stem.startswith("test_") or stem.endswith("_test")


def stamp_of(info):
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns


class Sources:
    """The test files below one folder."""

    def __init__(self, root, targets=(), patched=()):
        self.root = os.path.realpath(root)
        self.same = None
        self.stamps = {}
        self.codes = {}
        self.plain = {}
        self.noted = {}
        self.real = {}
        self.problems = set()
        self.patched = {os.path.realpath(os.path.join(self.root, path)) for path in patched}
        if patched:
            self.same = Looker(self.patched, self.problems.add).same
        self._scan(self.root, False)
        for target in targets:
            path = os.path.join(self.root, target)
            if target.endswith(".py") and os.path.isfile(path):
                self.stamps[os.path.realpath(path)] = stamp_of(os.stat(path))

    def _scan(self, folder, inside):
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                if not name.startswith(".") and name not in SKIPPED_FOLDERS:
                    self._scan(entry.path, inside or name in FOLDERS)
            elif name.endswith(".py") and (inside or is_test_file(name)) and entry.is_file():
                self.stamps[os.path.realpath(entry.path)] = stamp_of(entry.stat())

    def install(self):
        """From here on test files are loaded by this class."""
        places = [place for place, finder in enumerate(sys.meta_path) if finder is PATH_FINDER]
        sys.meta_path.insert(places[0] if places else len(sys.meta_path), make_finder(self))
        return self

    def code(self, path, tools=(os.open, os.read, os.fstat, os.close, compile)):
        """The compiled file; ImportError when it is not what it was."""
        start, read, fstat, close, make = tools
        handle = start(path, os.O_RDONLY)
        try:
            same = stamp_of(fstat(handle)) == self.stamps[os.path.realpath(path)]
            parts = []
            while True:
                part = read(handle, 1 << 20)
                if not part:
                    break
                parts.append(part)
        finally:
            close(handle)
        if not same:
            self.problems.add("the file changed: " + os.path.relpath(path, self.root))
            raise ImportError(path + " was changed while tests ran")
        data = b"".join(parts)
        if self.same is not None:
            code = make(rewrite(make(data, path, "exec", ONLY_AST, True)), path, "exec", dont_inherit=True)
        else:
            code = make(data, path, "exec", dont_inherit=True)
        self._keep(code, data.split(b"\n"), self.plain.setdefault(os.path.realpath(path), set()))
        return code

    def _keep(self, code, lines, plain):
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self.codes[id(inner)] = inner
                if not is_decorated(lines, inner.co_firstlineno):
                    plain.add(inner.co_name)
                self._keep(inner, lines, plain)

    def realpath(self, path):
        """What the path first was: asked twice a test, and links do not change while honest tests run."""
        if path not in self.real:
            self.real[path] = os.path.realpath(path)
        return self.real[path]

    def check_module(self, module, path):
        """Notes a problem when the module of a test file was not loaded from it by this class."""
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if type(loader) is not TrustedLoader or os.path.realpath(loader.path) != os.path.realpath(path):
            self.problems.add("the module of " + os.path.relpath(path, self.root) + " came from elsewhere")

    def note(self, key, function):
        """Remembers the code of a test function."""
        self.noted[key] = [code for _, code in layers(function)]

    def check(self, key, function, name, path):
        """Notes a problem when a test function is no longer itself, or never was."""
        found = layers(function)
        noted = self.noted.get(key, ())
        same = len(noted) == len(found) and all(
            code is then
            for (_, code), then in zip(found, noted)  # noqa: B905
        )
        plain = path is not None and name in self.plain.get(self.realpath(path), ())
        if plain and (not found or found[0][1] is None):  # Something built in stands for it.
            same = False
        for inner, code in found:
            if id(code) in self.codes:
                same = same and (self.same is None or inner.__globals__.get(NAME) is self.same)
            elif (
                code is not None and plain and self.realpath(code.co_filename).startswith(self.root + os.sep)
            ):
                same = False
        if not same:
            self.problems.add("the test function was replaced: " + name)


def layers(function):
    """A function and what it wraps, each with its code."""
    found = []
    while function is not None and len(found) < 50:
        function = getattr(function, "__func__", function)
        found.append((function, getattr(function, "__code__", None)))
        function = getattr(function, "__wrapped__", None)
    return found


def is_decorated(lines, first):
    """Whether a function that begins in this line has decorators other than pytest's, which give it back."""
    for line in lines[first - 1 : first + 40]:
        text = line.strip()
        if text.startswith((b"def ", b"async def ", b"class ")):
            return False
        if text.startswith(b"@") and not text.startswith(b"@pytest."):
            return True
    return True


class TrustedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a test file from its source."""

    sources = None

    def get_code(self, fullname):
        return self.sources.code(self.path)

    def exec_module(self, module):
        if self.sources.same is not None:
            vars(module)[NAME] = self.sources.same
        super().exec_module(module)


PATH_FINDER = importlib.machinery.PathFinder


def make_finder(sources):
    """Like the import system's own finder of files, but for the loader of test files."""
    find, plain = PATH_FINDER.find_spec, importlib.machinery.SourceFileLoader
    TrustedLoader.sources = sources

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            spec = find(name, path, target)
            if spec is not None and type(spec.loader) is plain and spec.origin:
                if os.path.realpath(spec.origin) in sources.stamps:
                    spec.loader = TrustedLoader(name, spec.origin)
            return spec

        @staticmethod
        def invalidate_caches():
            """PathFinder is asked too."""

    return Finder


class Builtins:
    """The built-in functions and types, to be looked at between tests: a test may replace some for itself."""

    def __init__(self):
        self.pairs = [(name, value) for name, value in vars(builtins).items() if callable(value)]
        self.names = [name for name, _ in self.pairs]
        self.values = [value for _, value in self.pairs]
        self.get = vars(builtins).get

    def changed(self, same=operator.is_, every=all, each=map):
        """Names; asks no built-in function by its name."""
        get = self.get
        if every(each(same, each(get, self.names), self.values)):
            return []
        return ["builtins." + name for name, value in self.pairs if get(name) is not value]
