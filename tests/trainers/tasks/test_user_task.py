"""A user's own task is a function in a module; whatever is wrong with it is said in one line."""

import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.trainers.tasks.test_tasks import refusal, trained
from trainers.tasks import load_task
from trainers.tasks.base import evaluating

EXAMPLES = Path(__file__).parents[3] / "examples"

WHOLE = """
class Whole:
    name = "whole"
    num_samples = 5
    global_batch_size = 2
    epochs = 1
    def __init__(self, seed, width=1):
        self.seed = seed
        self.width = width
    def model(self): ...
    def optimizer(self, parameters): ...
    def batch(self, indices): ...
    def loss(self, model, batch): ...
    def evaluate(self, model): return {}
    def show(self, model): return ""
    def config(self): return {"seed": self.seed, "width": self.width}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory for a test, whose modules are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def write(folder: Path, source: str) -> None:
    """Make it the module `mine`."""
    (folder / "mine.py").write_text(WHOLE + source)


def test_a_function_of_a_module_in_the_current_directory(here: Path) -> None:
    """It is called with the seed, and with the options if there are any; a class will do as a function.

    A dotted name is that of a module in folders below; the class may have the protocol as its base.
    """
    (here / "deep" / "down").mkdir(parents=True)
    for folder in (here, here / "deep" / "down"):
        write(folder, "from trainers.tasks import Task\nclass Own(Whole, Task): ...\n")
    assert load_task("mine:Whole", 7).config() == {"seed": 7, "width": 1}
    assert load_task("mine:Own", 7, width=3).config() == {"seed": 7, "width": 3}
    assert load_task("deep.down.mine:Whole", 0).num_samples == 5


UNSUITED = [  # the name that is given, and the source below `Whole`
    ("absent:make", ""), ("mine.absent:make", ""), ("mine.py:make", ""), (":make", ""), (".mine:make", ""),
    ("mine:absent", ""),
    ("mine:N", "N = 3"),
    ("mine:f", "def f(seed): raise KeyError('a b')"),
    ("mine:f", "def f(): ..."),
    ("mine:f", "def f(seed): ..."),
    ("mine:Part", "from trainers.tasks import Task\nclass Part(Task):\n def __init__(self, seed): ...\n loss = print"),
    ("mine:Odd", "class Odd(Whole):\n @property\n def num_samples(self): raise RuntimeError('not read\\n yet')"),
    ("mine:Odd", "class Odd(Whole): num_samples = 0"),
    ("mine:Odd", "class Odd(Whole): epochs = 2.5"),
    ("mine:Odd", "class Odd(Whole): name = None"),
    ("mine:Odd", "class Odd(Whole):\n def config(self): ..."),
    ("mine:Odd", "class Odd(Whole):\n def config(self): return {'sizes': [3, 4]}"),
    ("mine:Whole", "import torsch"),
    ("mine:f", "def f(seed)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "source"), UNSUITED)
def test_what_is_no_task_is_refused(here: Path, name: str, source: str, snapshot: SnapshotAssertion) -> None:
    """It is said which name was given, and what is missing or wrong."""
    write(here, source)
    assert refusal(name) == snapshot


def test_the_example_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wave, of mean square 0.5, to a mean square error of less than 0.03; and it is short enough for a README."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    task = load_task("own_task:Sine", 0)
    model = trained(task, seed=0)
    with evaluating(model):
        assert task.evaluate(model)["loss"] < 0.03
        assert task.show(model).startswith("it misses the wave by 0.")
    source, _, _ = (EXAMPLES / "own_task.py").read_text().partition("\n\n\nif __name__")  # and how to start it
    assert len(source.splitlines()) <= 40
