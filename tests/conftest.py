"Where tests find their data: `data` ships with the project, `shared` and `real` may be absent and then skip"
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

def data(*parts):
    "A file under tests/data"
    return ROOT.joinpath('tests', 'data', *parts)

def shared(*parts):
    "A file of the golden collection that may not be copied here; skips where the collection is absent"
    path = ROOT.parent.joinpath('shared', 'data', *parts)
    if not path.exists(): pytest.skip(f"golden collection not present: {'/'.join(parts)}")
    return path

def real(name):
    "A real model in models/; skips where it was not fetched"
    path = ROOT/'models'/name
    if not path.exists(): pytest.skip(f"real model not present: models/{name} (make models)")
    return path

def pytest_configure(config):
    config.addinivalue_line('markers', 'real: needs a real model from models/ (fetched by make models)')
    config.addinivalue_line('markers', 'oracle: needs the xllamacpp wheel (llama.cpp itself)')
