"llama.cpp itself, live: the wheel `xllamacpp` serves the same file and answers the same questions"
import json
import urllib.request

import numpy as np
import pytest

import llamaref as lr
from conftest import data

pytest.importorskip('xllamacpp', reason='llama.cpp is not installed (extra `oracle`)')
pytestmark = pytest.mark.oracle

PROMPTS = ['<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n',
           'One day a small bird found a', 'The red fox sees the green bird and the red fox', '{"name": "']

@pytest.fixture(scope='module')
def peer():
    from llamaref.programs.bench import Peer
    with Peer(str(data('models', 'tiny-qwen3.gguf')), 512, 1) as p: yield p

@pytest.fixture(scope='module')
def ctx():
    return lr.Context(lr.load(data('models', 'tiny-qwen3.gguf')), n_ctx=512, type_k='f16', type_v='f16')

def ask(peer, path, **body):
    head = {'Content-Type': 'application/json'}
    r = urllib.request.Request(peer.address + path, json.dumps(body).encode(), head)
    with urllib.request.urlopen(r, timeout=60) as answer: return json.load(answer)

@pytest.mark.parametrize('text', [
    *PROMPTS, '', ' ', 'naïve café 🙂\n\n\ttabs', '<think>x</think><|unused|>'])
@pytest.mark.parametrize('special', [True, False])
def test_tokens(peer, ctx, text, special):
    want = ask(peer, '/tokenize', content=text, parse_special=special, add_special=True)['tokens']
    assert ctx.model.vocab.encode(text, parse_special=special) == want
    back = b''.join(map(ctx.model.vocab.piece, want)).decode()
    assert ask(peer, '/detokenize', tokens=want)['content'] == back

def log_softmax(x):
    x = x.astype(np.float64) - x.max()
    return x - np.log(np.exp(x).sum())

@pytest.mark.parametrize('text', PROMPTS)
def test_greedy_ids_and_probabilities(peer, ctx, text):
    "Both sides keep keys as halves, which costs up to 2e-2; ids only count where no tie is near"
    ids = ctx.model.vocab.encode(text, parse_special=True)
    got = ask(peer, '/completion', prompt=ids, n_predict=32, temperature=0, n_probs=5, ignore_eos=True,
              cache_prompt=False)
    ctx.memory.clear()
    row, seen = ctx.decode(ids).row(-1), 0
    eog = sorted(ctx.model.vocab.eog_ids)
    for step in got['completion_probabilities']:
        lp = log_softmax(row)
        assert max(abs(lp[t['id']] - t['logprob']) for t in step['top_logprobs'] if t['logprob'] > -6) < 2e-2
        lp[eog] = -np.inf
        second, first = np.sort(lp)[-2:]
        if first - second > 4e-2:
            assert int(lp.argmax()) == step['id']
            seen += 1
        row = ctx.decode([step['id']]).row(-1)
    assert seen >= 16
