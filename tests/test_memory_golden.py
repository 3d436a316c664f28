"""Scripts of memory operations over whole models: llama.cpp's return codes, position ranges and logits

`swa_*` run on rnd-gemma3 (logits within 2e-2: the peer's GELU is a table), `attn_*` on stories260K (1e-4),
which is not copied here. Steps that save or load a state end a script early until states exist.
"""
import json

import numpy as np
import pytest

import llamaref as lr
from conftest import data, shared
from llamaref.errors import ContextError, DeviceError

DOC = json.loads(data('golden', 'memory.json').read_text())
ARRAYS = np.load(data('golden', 'memory.npz'))
STATE = ('state_get', 'state_set', 'new_context')

def scripts(prefix):
    return [pytest.param(s, id=s['name']) for s in DOC['scenarios'] if s['name'].startswith(prefix)]

@pytest.fixture(scope='module', params=['numpy', 'opencl'])
def device(request):
    try: return lr.Device.get(request.param)
    except DeviceError as e: pytest.skip(str(e))

@pytest.fixture(scope='module')
def gemma(device): return lr.load(data('models', 'rnd-gemma3.gguf'), device)

@pytest.fixture(scope='module')
def stories(device): return lr.load(shared('models', 'stories260K.gguf'), device)

def decode(ctx, step):
    "(code, logits)"
    try: out = ctx.decode(lr.Batch(step['tokens'], step['pos'], step['seq'], step['output']))
    except ContextError as e: return e.code, None
    return 0, out.logits

def operate(mem, step):
    a = {k: step.get(k) for k in ('seq', 'src', 'dst', 'p0', 'p1', 'delta', 'd')}
    return dict(seq_rm=lambda: mem.seq_rm(a['seq'], a['p0'], a['p1']),
                seq_cp=lambda: mem.seq_cp(a['src'], a['dst'], a['p0'], a['p1']),
                seq_keep=lambda: mem.seq_keep(a['seq']),
                seq_add=lambda: mem.seq_add(a['seq'], a['p0'], a['p1'], a['delta']),
                seq_div=lambda: mem.seq_div(a['seq'], a['p0'], a['p1'], a['d']),
                clear=lambda: mem.clear())[step['op']]()

def check(step, got, logits, tol, where):
    "One step's answer; where the peer is known to be wrong, `want` counts instead"
    fault = 'peer_fault' in step
    if 'returns' in step and not fault: assert got == step['returns'], where
    if logits is None or not logits.size: return
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=tol, err_msg=where)
    if 'want' in step: close(logits[-1], ARRAYS[step['want']].reshape(-1, logits.shape[1])[-1])
    if 'logits' in step and not fault: close(logits, ARRAYS[step['logits']])

def run(model, s, tol):
    c = s['context']
    names = 'n_ctx n_batch n_ubatch n_seq_max kv_unified type_k type_v'.split()
    ctx = lr.Context(model, **{k: c[k] for k in names})
    for n, step in enumerate(s['steps']):
        if step['op'] in STATE: return
        where, logits = f"step {n}, {step['op']}", None
        if step['op'] == 'decode': got, logits = decode(ctx, step)
        else: got = operate(ctx.memory, step)
        check(step, got, logits, tol, where)
        ranges = [[ctx.memory.seq_pos_min(q), ctx.memory.seq_pos_max(q)] for q in range(c['n_seq_max'])]
        assert ranges == step['ranges'], where

@pytest.mark.parametrize('s', scripts('swa_'))
def test_sliding_window_memory(gemma, s): run(gemma, s, 2e-2)

@pytest.mark.parametrize('s', scripts('attn_'))
def test_attention_memory(stories, s): run(stories, s, 1e-4)
