"""A user's own task is a function in a module; whatever is wrong with it is said in one line."""

import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent:make", "there is no module 'absent', neither in the current directory nor installed"),
        ("mine.absent:make", "there is no module 'mine.absent', neither in the current directory nor installed"),
        ("mine.py:make", "give the module instead of its file: mine:make"),
        (":make", "give a module and a function: MODULE:FUNCTION"),
        (".mine:make", "give a module and a function: MODULE:FUNCTION"),
        ("mine:absent", "there is no function 'absent' in the module 'mine'"),
        ("mine:NUMBER", "'NUMBER' is not a function, but an object of the class int"),
        ("mine:failing", "it raised KeyError: 'a b'"),
        ("mine:with_no_seed", "it raised TypeError: with_no_seed() got an unexpected keyword argument 'seed'"),
        ("mine:nothing", "it returned None, which lacks name, num_samples, global_batch_size, epochs, model, "
                         "optimizer, batch, loss, evaluate, show, config, which a Task must have"),
        ("mine:Lossless", "it returned an object of the class Lossless, which lacks loss, which a Task must have"),
        ("mine:Unready", "its num_samples raised RuntimeError: not read yet"),
        ("mine:Empty", "its num_samples is 0; it must be an int of at least 1"),
        ("mine:Halves", "its global_batch_size is 2.5; it must be an int of at least 1"),
        ("mine:Anonymous", "its name is None; it must be a string"),
        ("mine:Unset", "its config() returned None, not a dict"),
        ("mine:Odd", "its config() has 'sizes': [3, 4]; values must be int, float or str"),
        ("mine:Partly", "it returned an object of the class Partly, which lacks name, num_samples, global_batch_size, "
                        "epochs, model, optimizer, batch, evaluate, show, config, which a Task must have"),
        ("lacking:make", "importing it raised ModuleNotFoundError: No module named 'torsch'"),
        ("broken:make", "importing it raised SyntaxError: expected ':' (broken.py, line 1)"),
    ],
)  # fmt: skip
def test_what_is_no_task_is_refused(here: Path, name: str, message: str) -> None:
    """It is said which name was given, and what is missing or wrong."""
    (here / "lacking.py").write_text("import torsch\n")
    (here / "broken.py").write_text("def make(seed)\n")
    write(here, """
NUMBER = 3
def failing(seed): raise KeyError("a b")
def with_no_seed(): ...
def nothing(seed): ...
class Lossless(Whole): loss = None
class Unready(Whole):
    @property
    def num_samples(self): raise RuntimeError("not read\\n yet")
class Empty(Whole): num_samples = 0
class Halves(Whole): global_batch_size = 2.5
class Anonymous(Whole): name = None
class Unset(Whole):
    def config(self): ...
class Odd(Whole):
    def config(self): return {"sizes": [3, 4]}
from trainers.tasks import Task
class Partly(Task):
    def __init__(self, seed): ...
    def loss(self, model, batch): ...
""")  # fmt: skip
    assert refusal(name) == f"task {name!r}: {message}"


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
