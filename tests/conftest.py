"""What all tests share: frozen nodes, and the collector of text tests.

A `*.tw` file below `tests/` holds cases, separated by lines `// ====`:

    // test: a tail is guarded                     (optional: names the case)
    // passes: unroll_loops{limit = 4}             (or `schedule:`, or `verify:`)
    func @f(...) stage scheduled { ... }
    // ---- becomes
    func @f(...) stage scheduled { ... }

`// schedule:` takes lines of calls of the primitives, as methods of a Schedule without its name:

    // schedule:
    //   i, j, k = get_loops(get_block("C"))
    //   split(i, [None, 8])

A case with both is scheduled first, then goes through the passes.

A program that starts with `graph` or `module` is a model, with the passes of models.

`// rules:` takes names of processors (`name,-feature` is one without), `// threads:` and
`// constants:` what else rules may know;
the model is lowered and scheduled for each, and the second half lists what was decided:

    // ---- becomes
    cascadelake: matmul: gemm mr=8 nr=3 ...

In place of the second program, `// error TW2104 @5:8: message` expects a refusal, at this line and
column of the program it shows. Both halves are parsed and compared by structure. `pytest --bless`
writes what comes out as the second half.
"""

import difflib
import gc
import importlib
import importlib.util
import os
import re
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["TILEWRIGHT_CHECKED"] = "1"  # before tilewright is imported: freezes every node
os.environ["TILEWRIGHT_TUNING_DB"] = ""  # what the user has tuned changes no test
# Before PyTorch and NumPy are imported: their threads would spin while they wait, on cores that
# other workers want, for as long as everything else takes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

import tilewright.accel.intrin  # declares the accelerator's memories
import tilewright.intrin  # noqa: F401  # declares the hardware that programs may name
from tilewright.base.errors import TilewrightError
from tilewright.base.passes import PassContext, parse_passes, run_passes
from tilewright.graph.parser import parse as parse_module
from tilewright.graph.verify import verify as verify_module
from tilewright.tensor import parse_all, verify

if importlib.util.find_spec("hypothesis") is not None:  # not where GPUs alone are tested
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.conjecture import providers

    # The same examples in every run, however slow the machine is.
    settings.register_profile(
        "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("tests")
    # Examples would take numbers from the source of all modules that happen to be imported: others
    # in every order of tests, and three seconds of reading.
    setattr(providers, "_get_local_constants", lambda: providers._local_constants)

gc.disable()  # until tests are collected: what is made before lives as long as they do

MODEL = re.compile(r"(?m)^(graph|module)\b")
SEPARATOR = re.compile(r"(?m)^// ={4,}.*\n")
BECOMES = "// ---- becomes\n"
ERROR = re.compile(r"(?ms)^// error (?P<text>.*)\Z")
DIRECTIVE = re.compile(
    r"^// (?P<word>test|passes|schedule|verify|target|rules|threads|constants):(?P<text>.*)$"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the outcome of text tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that workers end together. Of a test with the mark
    `sampled`, combinations that are not in the sample become `fuzz`."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    if not cases:
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from grids import sample

    for some in cases.values():
        # An id for each list of values: `indices` are not places in these.
        kept = sample([tuple(each.callspec._idlist) for each in some])
        for at in set(range(len(some))) - kept:
            some[at].add_marker(pytest.mark.fuzz)


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not in what lives as long as the tests: 9% of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _settled() -> Iterator[None]:
    """What the tests of a file leave in caches stays: nobody looks for garbage there again."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it would be of any test of the file
        gc.collect()
    gc.freeze()


def pytest_sessionstart() -> None:
    """Tests press Ctrl-C, which jobs in the background of a shell are started to ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """A test that draws numbers by PyTorch gets the same in every run, in any order of tests."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".tw":
        return TextFile.from_parent(parent, path=file_path)
    return None


class TextFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        line = 1
        for number, text in enumerate(SEPARATOR.split(self.path.read_text())):
            case = Case(text)
            name = case.directives.get("test", "").strip() or f"line {line}"
            yield TextItem.from_parent(self, name=name, number=number, case=case, line=line)
            line += text.count("\n") + 1


@dataclass(frozen=True)
class Language:
    """How programs of a kind are read and checked, and where their passes are."""

    parse: Callable[[str], list[Any]]
    verify: Callable[[Any], None]
    package: str


TENSOR = Language(parse_all, verify, "tilewright.tensor.passes")
GRAPH = Language(lambda text: [parse_module(text)], verify_module, "tilewright.graph.passes")
PLANS = Language(lambda text: text.split("\n"), lambda text: None, "tilewright.rules")
ARM = ("neoverse", "cortex", "apple")  # how processors of AArch64 begin; others are of x86-64


class Case:
    """One case of a file: what to do, with which program, and what should come of it."""

    def __init__(self, text: str) -> None:
        self.text = text
        error = ERROR.search(text)
        if error is not None:
            self.given, self.expected = text[: error.start()], None
            self.error = "\n".join(
                line.removeprefix("//").strip() for line in error["text"].strip().splitlines()
            )
        else:
            self.given, _, expected = text.partition(BECOMES)
            self.expected, self.error = expected, ""
        self.directives = _directives(self.given)
        self.language = GRAPH if MODEL.search(self.given) else TENSOR
        if "rules" in self.directives:
            self.language = PLANS

    def run(self) -> str:
        """The outcome: the text of the resulting program, or of an error."""
        try:
            return "\n".join(str(fn) for fn in self._result())
        except TilewrightError as error:
            if self.expected:
                raise
            return _describe(error)

    def _result(self) -> list[Any]:
        if "rules" in self.directives:
            return self._decisions()
        programs = self.language.parse(self.given)
        if "verify" in self.directives:
            for program in programs:
                self.language.verify(program)
            return programs
        if "schedule" in self.directives:
            programs = [self._schedule(fn) for fn in programs]
            if "passes" not in self.directives:
                return programs
        known = KnownPasses(self.language.package)
        passes, options = parse_passes(self.directives.get("passes", ""), known)
        ctx = PassContext(
            target=self._target(),
            costs=self._costs(),
            options=options,
            observers=(lambda name, before, after: self.language.verify(after),),
        )
        return [run_passes(program, passes, ctx) for program in programs]

    def _decisions(self) -> list[str]:
        """What rules decide about the kernel of a model, for each processor."""
        rules = importlib.import_module("tilewright.rules")
        lower = importlib.import_module("tilewright.lower.graph").lower_graph
        found: list[str] = []
        for processor in self.directives["rules"].split():
            triple = "aarch64" if processor.startswith(ARM) else "x86_64"
            name, *switches = processor.split(",")  # features that it has, or has not
            features = f" -mattr={','.join(switches)}" if switches else ""
            made = rules.schedule(
                lower(parse_module(self.given).main, "kernel"),
                f"{triple}-linux-gnu -mcpu={name}{features}",
                threads=int(self.directives.get("threads", "1")),
                constants=self.directives.get("constants", "").split(),
            )
            verify(made.schedule.function)
            found += [f"{processor}: {d.block}: {d.rule} {d.plan}" for d in made.decisions]
            found += [
                f"{processor}: {r.block}: refused {r.rule}: {r.reason}" for r in made.refusals
            ]
        return found

    def _target(self) -> Any:
        if "target" not in self.directives:
            return None
        targets = importlib.import_module("tilewright.base.target")
        return targets.Target.parse(self.directives["target"])

    def _costs(self) -> Any:
        """What candidates cost on the case's target; no table without one."""
        if "target" not in self.directives:
            return None
        costs = importlib.import_module("tilewright.driver.costs").KernelCosts
        setting = importlib.import_module("tilewright.driver.kernels").KernelSetting
        return costs(setting(self._target(), int(self.directives.get("threads", "1"))))

    def _schedule(self, fn: Any) -> Any:
        schedule = importlib.import_module("tilewright.tensor.schedule").Schedule(fn)
        methods = {
            name: getattr(schedule, name)
            for name in dir(schedule)
            if not name.startswith("_") and callable(getattr(schedule, name))
        }
        exec(
            textwrap.dedent(self.directives["schedule"]).strip(), {**methods, "schedule": schedule}
        )
        verify(schedule.function)
        return schedule.function


class KnownPasses(Mapping[str, Callable[..., Any]]):
    """The passes by name: each is a function in a file of its own name.

    Those of accelerators lie beside the compiler that runs them.
    """

    def __init__(self, package: str) -> None:
        self.package = package

    def _module(self, name: object) -> str:
        for package in (self.package, "tilewright.accel.compiler"):
            if importlib.util.find_spec(f"{package}.{name}") is not None:
                return f"{package}.{name}"
        return ""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(importlib.import_module(self._module(name)), name)
        return found

    def __contains__(self, name: object) -> bool:
        return bool(self._module(name))

    def __iter__(self) -> Iterator[str]:
        package = importlib.import_module(self.package)
        return (path.stem for path in sorted(Path(package.__path__[0]).glob("*.py")))

    def __len__(self) -> int:
        return len(list(iter(self)))


class TextItem(pytest.Item):
    def __init__(self, number: int, case: Case, line: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number, self.case, self.line = number, case, line

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line - 1, self.name

    def runtest(self) -> None:
        bless = self.config.getoption("--bless")
        if bless:
            self.case.expected, self.case.error = "", ""
        outcome = self.case.run()
        if bless:
            self._bless(outcome)
            return
        if self.case.expected is None:
            _compare(self.case.error, outcome)
            return
        if not self.case.expected.strip():
            pytest.fail("the case has no outcome: run pytest --bless", pytrace=False)
        parse = self.case.language.parse
        expected = "\n".join(str(program) for program in parse(self.case.expected))
        if self.case.language is PLANS:
            _compare(expected, outcome)
            return
        if parse(self.case.expected) != parse(outcome):
            _compare(expected, outcome)
            pytest.fail("the programs differ in what the text does not show", pytrace=False)

    def _bless(self, outcome: str) -> None:
        if outcome.startswith("TW"):
            second = "".join(f"// {line}\n" for line in f"error {outcome}".splitlines())
        else:
            second = BECOMES + outcome.rstrip("\n") + "\n"
        parts = SEPARATOR.split(self.path.read_text())
        lines = SEPARATOR.findall(self.path.read_text())
        parts[self.number] = self.case.given + second
        texts = [parts[0]]
        for line, part in zip(lines, parts[1:], strict=True):
            texts += [line, part]
        self.path.write_text("".join(texts))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, TilewrightError):
            return f"{self.path.name}, {self.name}:\n{excinfo.value}"
        return super().repr_failure(excinfo, style)


def _directives(text: str) -> dict[str, str]:
    """The `// word: text` lines, each with the comment lines that continue it."""
    found: dict[str, str] = {}
    word = ""
    for line in text.splitlines():
        match = DIRECTIVE.match(line)
        if match is not None:
            word = match["word"]
            found[word] = match["text"].strip()
        elif line.startswith("//") and word:
            found[word] += "\n" + line.removeprefix("//").rstrip()
        else:
            word = ""
    return found


def _describe(error: TilewrightError) -> str:
    place = ""
    if error.excerpt is not None:
        place = f" @{error.excerpt.line}:{error.excerpt.column + 1}"
    return f"{error.code}{place}: {error.message}"


def _compare(expected: str, outcome: str) -> None:
    if expected.split() == outcome.split():
        return
    diff = difflib.unified_diff(
        expected.splitlines(), outcome.splitlines(), "expected", "found", lineterm=""
    )
    pytest.fail("\n".join(diff), pytrace=False)
