"Logits and greedy tokens against llama.cpp's own, recorded in tests/data/golden"
import json

import numpy as np
import pytest

import llamaref as lr
from conftest import data, real, shared
from llamaref.errors import DeviceError

RND = 'llama llama-ropefreqs llama-yarn llama-linear llama-mixed qwen2 qwen3 gemma3 gemma3-softcap'.split()
TOL = {'gemma3': 2e-2, 'gemma3-softcap': 2e-2}   # the peer's GELU is a table indexed by a half; else 1e-4

@pytest.fixture(scope='module', params=['numpy', 'opencl'])
def device(request):
    try: return lr.Device.get(request.param)
    except DeviceError as e: pytest.skip(str(e))

def gold(name): return np.load(data('golden', f'rnd-{name}.npz'))

def context(name, device, **kw):
    return lr.Context(lr.load(data('models', f'rnd-{name}.gguf'), device), n_ctx=256, **kw)

def read(ctx, ids, n):
    "Logits of every position, the text read n tokens at a time"
    ctx.memory.clear()
    pieces = [ids[i:i+n].tolist() for i in range(0, len(ids), n)]
    return np.concatenate([ctx.decode(p, logits='all').logits for p in pieces])

@pytest.mark.parametrize('name', RND)
def test_logits_of_every_position(name, device):
    g, ctx = gold(name), context(name, device)
    for p in ('p0', 'p1', 'p2'):
        ids, want = g[f'{p}_ids'], g[f'{p}_logits']
        whole = read(ctx, ids, len(ids))
        assert abs(whole - want).max() < TOL.get(name, 1e-4), p
        single = read(ctx, ids, 1)
        assert abs(single - want).max() < TOL.get(name, 1e-4), p
        if device.name.startswith('opencl'):
            np.testing.assert_array_equal(whole, single)
            np.testing.assert_array_equal(whole, read(ctx, ids, 7))

@pytest.mark.parametrize('name', RND)
def test_greedy_ids(name, device):
    g, ctx = gold(name), context(name, device)
    for p in ('p0', 'p1', 'p2'):
        ctx.memory.clear()
        row, out = ctx.decode(g[f'{p}_ids'].tolist()).row(-1), []
        for _ in g[f'{p}_greedy']:
            out.append(int(row.argmax()))
            row = ctx.decode(out[-1:]).row(-1)
        assert g[f'{p}_greedy_margin'].min() > TOL.get(name, 1e-4) / 2    # no step is a tie
        assert out == g[f'{p}_greedy'].tolist()

def first_difference(model_path, golden, device, tol):
    "Name of the first layer whose input differs from the recorded one, or None"
    seen = []
    ctx = lr.Context(lr.load(model_path, device), n_ctx=256)
    tap = lambda name, i, x: seen.append((f'{name} {i}', x.numpy()))
    ctx.decode(golden['p0_ids'].tolist(), logits='all', tap=tap)
    for (name, x), want in zip(seen, golden['p0_layer_inputs'], strict=True):
        if not abs(x - want).max() < tol: return name

@pytest.mark.parametrize('name', [n for n in RND if 'p0_layer_inputs' in gold(n)])
def test_layer_by_layer(name, device):
    assert first_difference(data('models', f'rnd-{name}.gguf'), gold(name), device, 1e-4) is None

def test_the_comparer_names_the_first_layer_that_differs():
    g = dict(gold('llama'))
    g['p0_layer_inputs'] = g['p0_layer_inputs'].copy()
    g['p0_layer_inputs'][1, 5, 3] += 1e-3
    assert first_difference(data('models', 'rnd-llama.gguf'), g, 'numpy', 1e-4) == 'layer_input 1'

@pytest.mark.parametrize('name', RND)
def test_a_token_alone_and_in_company(name):
    "Batches of 1, 2, 3, 8, 33 rows and a second sequence beside it: the same bits on the compiled device"
    try: dev = lr.Device.get('opencl')
    except DeviceError as e: pytest.skip(str(e))
    ids = gold(name)['p1_ids'][:66]
    ctx = context(name, dev, n_seq_max=2)
    want = read(ctx, ids, 1)
    for n in (2, 3, 8, 33): np.testing.assert_array_equal(read(ctx, ids, n), want, err_msg=f'pieces of {n}')
    ctx.memory.clear()
    ctx.decode(ids[::-1][:20].tolist(), seq_id=1)
    for i in range(0, 20, 4):
        both = lr.Batch()
        for j in range(4):
            both.add(int(ids[i+j]), i + j, [0], True)
            both.add(int(ids[j]), 20 + i + j, [1], True)
        np.testing.assert_array_equal(ctx.decode(both).logits[::2], want[i:i+4])

def log_softmax(x):
    x = x.astype(np.float64) - x.max()
    return x - np.log(np.exp(x).sum())

def check_real(run, ctx, ids, tol, n_steps=48):
    "Greedy ids up to the first near-tie, and the two recorded top-20 lists"
    row = ctx.decode(ids).row(-1)
    for step, (want, margin) in enumerate(zip(run['greedy_ids'][:n_steps], run['margins'])):
        for at, key in ((0, 'top20_first'), (8, 'top20_after_8')):
            if step == at:
                lp = log_softmax(row)
                assert max(abs(lp[i] - v) for i, v in run[key]) < tol, key
        if margin < tol: return     # a near-tie: another order of summation may choose the other
        assert int(row.argmax()) == want, f'step {step}'
        row = ctx.decode([want]).row(-1)

def prompts(name): return json.loads(data('golden', f'real-{name}.json').read_text())['prompts']

STORIES = prompts('stories260k')
@pytest.mark.parametrize('prompt', STORIES, ids=[p['id'] for p in STORIES])
def test_stories260k(prompt, device):
    ctx = lr.Context(lr.load(shared('models', 'stories260K.gguf'), device), n_ctx=512)
    assert ctx.model.vocab.encode(prompt['text']) == prompt['prompt_ids']
    check_real(prompt['quantised'], ctx, prompt['prompt_ids'], 1e-3)

def big(name, file, prompt, tol, n_ctx):
    "A real model on the compiled device; the plain numpy one would take minutes"
    try: dev = lr.Device.get('opencl')
    except DeviceError as e: pytest.skip(str(e))
    ctx = lr.Context(lr.load(real(file), dev), n_ctx=n_ctx)
    assert ctx.model.vocab.encode(prompt['text'], parse_special=True) == prompt['prompt_ids']
    check_real(prompt['float'], ctx, prompt['prompt_ids'], tol)

SMOL = prompts('smollm2-135m-instruct-q4_1')
@pytest.mark.real
@pytest.mark.parametrize('prompt', SMOL, ids=[p['id'] for p in SMOL])
def test_smollm2(prompt): big('smollm2', 'SmolLM2-135M-Instruct.Q4_1.gguf', prompt, 1e-3, 512)

GEMMA = prompts('gemma-3-270m-q4_k_m')
@pytest.mark.real
@pytest.mark.parametrize('prompt', GEMMA, ids=[p['id'] for p in GEMMA])
def test_gemma3(prompt): big('gemma', 'gemma-3-270m-q4_k_m.gguf', prompt, 2e-2, 1024)

@pytest.mark.real
def test_smollm2_first_token_on_numpy():
    ctx = lr.Context(lr.load(real('SmolLM2-135M-Instruct.Q4_1.gguf'), 'numpy'), n_ctx=256)
    check_real(SMOL[0]['float'], ctx, SMOL[0]['prompt_ids'], 1e-3, n_steps=1)
