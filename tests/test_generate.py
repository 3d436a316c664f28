"""The generation loop on the small trained model: the peer's texts, its limits, and what a sampler sees"""
import itertools
import json

import numpy as np
import pytest
from conftest import data, real

import llamaref as lr
from llamaref.errors import ContextError, SamplingError
from llamaref.sampling.samplers import Dist, Greedy, Penalties, Sampler
from llamaref.speculative.generate import Generation, Timings, Token, generate, read_prompt, shift_context

CHAT = '<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n'

@pytest.fixture(scope='module')
def model(): return lr.load(data('models', 'tiny-qwen3.gguf'), device='numpy')

@pytest.fixture
def ctx(model): return lr.Context(model, n_ctx=256, n_seq_max=2)

@pytest.fixture(scope='module')
def ids(model): return model.vocab.encode(CHAT.format('Tell me a story.'), parse_special=True)

class Script(Sampler):
    "Says what it was told to say"
    def __init__(self, ids): self.ids, self.heard = iter(ids), []
    def sample(self, row): return next(self.ids)
    def accept(self, token): self.heard.append(token)

def test_front_door(ctx, ids):
    g = lr.generate(ctx, ids, max_tokens=5, sampler=lr.Sampler.greedy())
    tokens = list(g)
    assert [type(t) for t in tokens] == [Token] * 5 and g.stop == 'limit' and not any(t.eog for t in tokens)
    assert ''.join(t.piece for t in tokens) == g.text and [t.id for t in tokens] == g.ids
    times = [t.time for t in tokens]
    assert times == sorted(times) and times[0] > 0 and all(t.logits is None for t in tokens)

def test_recorded_greedy_texts(model):
    target = json.loads(data('golden', 'spec-traces.json').read_text())['targets']['A']
    assert target['model'] == 'tiny-qwen3.gguf'
    ctx = lr.Context(model, n_ctx=512)
    for p in target['prompts'][::4]:
        ctx.memory.clear()
        n = next((i for i, m in enumerate(p['margins']) if m < .01), len(p['greedy_ids']))
        g = generate(ctx, p['prompt_ids'], n)
        assert [t.id for t in g] == p['greedy_ids'][:n], p['id']
        if n == len(p['greedy_ids']): assert g.text.rstrip() in p['greedy_text'], p['id']

def test_golden_first_tokens(model):
    with np.load(data('golden', 'logits-tiny-qwen3-copycode.npz')) as z:
        prompt, want, rows = z['prompt_ids'], z['greedy_ids'], z['greedy_logits']
    tokens = list(generate(lr.Context(model, n_ctx=256), prompt, len(want), keep_logits=True))
    assert [t.id for t in tokens] == want.tolist()
    np.testing.assert_allclose([t.logits for t in tokens], rows, atol=1e-4)

def test_lazy_and_nothing_read_after_the_last_token(ctx, ids):
    g = generate(ctx, ids, 4)
    assert ctx.memory.seq_pos_max(0) == -1
    next(g)
    assert ctx.memory.seq_pos_max(0) + 1 == len(ids)
    list(g)
    assert g.n_past() == len(ids) + 3 and g.timings.n_decode == 3 and g.timings.n_prompt == len(ids)
    more = generate(ctx, g.ids[-1:], 4)   # go on from the last, unread, token
    assert g.ids + [t.id for t in more] == [t.id for t in generate(ctx, ids, 8, seq_id=1)]

def test_the_prompt_may_be_cut_in_any_way(model, ids):
    whole = read_prompt(lr.Context(model, n_ctx=256), ids)
    for n in (1, 3, len(ids)):
        assert abs(read_prompt(lr.Context(model, n_ctx=256, n_batch=n, n_ubatch=n), ids) - whole).max() < 1e-4

@pytest.mark.parametrize('limit', [0, 1, 3])
def test_limit(ctx, ids, limit):
    g = generate(ctx, ids, limit)
    assert len(list(g)) == limit and g.stop == 'limit' and g.n_past() == len(ids) + max(limit - 1, 0)

def test_stops_at_an_end_token_or_not(model, ctx, ids):
    eog = model.vocab.eot if model.vocab.eot is not None else model.vocab.eos
    said = [ids[0], eog, ids[1]]
    g = generate(ctx, ids, None, Script(said))
    tokens = list(g)
    assert [t.eog for t in tokens] == [False, True] and g.stop == 'eog' and tokens[-1].piece == ''
    g = generate(ctx, ids, 3, Script(said), seq_id=1, stop_at_eog=False, special=True)
    assert [t.id for t in g] == said and model.vocab.piece(eog).decode() in g.text

def test_pieces_are_whole_characters(model, ctx, ids):
    text = 'né 日本 🦙!'
    said = model.vocab.encode(text)
    g = generate(ctx, ids, len(said), Script(said))
    assert g.text == '' and ''.join(t.piece for t in g) == text
    half = model.vocab.encode('🦙')[:-1]
    assert all(t.piece == '' for t in generate(ctx, ids, len(half), Script(half)))

def test_sampler_hears_the_prompt_once(ctx, ids):
    s = Script(itertools.repeat(5))
    list(generate(ctx, ids, 3, s))
    assert s.heard == ids
    p = Penalties(64, 1.5)
    next(generate(ctx, ids, 3, lr.Sampler.chain(samplers=[]).add(p), seq_id=1))
    assert list(p.ring)[:len(ids)] == ids[-64:]

def test_same_seed_same_text(ctx, ids):
    def text(seed):
        ctx.memory.clear()
        return [t.id for t in generate(ctx, ids, 12, lr.Sampler.chain(seed=seed, temperature=1.5))]
    assert text(3) == text(3) != text(4)

def test_two_sequences_in_turn(model, ids):
    other = model.vocab.encode(CHAT.format('What is 2 + 3?'), parse_special=True)
    ctx = lr.Context(model, n_ctx=256, n_seq_max=2)
    pair = [generate(ctx, p, 10, seq_id=i) for i, p in enumerate((ids, other))]
    for _ in range(10):
        for g in pair: next(g, None)
    for g, p in zip(pair, (ids, other)):
        alone = lr.Context(model, n_ctx=256)
        assert g.ids == [t.id for t in generate(alone, p, 10)]

def test_context_full(model, ids):
    ctx = lr.Context(model, n_ctx=256)
    g = generate(ctx, ids, None, stop_at_eog=False)
    assert len(list(g)) == 256 - len(ids) and g.stop == 'context' and g.n_past() == 255

def test_cells_taken_by_another_sequence_stop_it_cleanly(ctx, ids):
    ctx.decode(list(range(200)), seq_id=1, logits='none')
    g = generate(ctx, ids, None, stop_at_eog=False)
    n = len(list(g))
    assert g.stop == 'context' and n == 256 - 200 - len(ids) + 1 and ctx.memory.seq_pos_max(1) == 199

def test_context_shift(model, ids):
    ctx = lr.Context(model, n_ctx=256)
    g = generate(ctx, ids, 400, stop_at_eog=False, shift=True, n_keep=-1)
    most = max(g.n_past() for _ in g)
    assert len(g.ids) == 400 and most == 255
    assert ctx.memory.seq_pos_min(0) == 0

def test_shift_numbers(ctx):
    ctx.decode(list(range(100)), logits='none')
    assert shift_context(ctx, 10) == 45 and ctx.memory.seq_pos_max(0) == 54
    assert shift_context(ctx, 1000) == 0 and shift_context(ctx, 54) == 0 and ctx.memory.seq_pos_max(0) == 54

@pytest.mark.parametrize('n_keep,want', [(0, 0), (2, 2), (-1, 9), (99, 9)])
def test_keep(ctx, n_keep, want): assert Generation(ctx, list(range(20, 29)), n_keep=n_keep).keep() == want

def test_keep_adds_the_token_that_begins_a_text(ctx, model):
    bos = model.vocab.bos
    if bos is None: pytest.skip('this vocabulary has no bos')
    assert Generation(ctx, [bos, 1, 2, 3], n_keep=2).keep() == 3

def test_bad_prompts(ctx):
    for prompt, text in (([], 'nothing to read'), ([1] * 257, '257 tokens do not fit'),
                         ([99999], 'token 99999')):
        with pytest.raises(ContextError, match=text): next(generate(ctx, prompt))
    assert ctx.memory.seq_pos_max(0) == -1

def test_a_sampler_that_fails_leaves_the_memory_readable(ctx, ids):
    ban = lr.Sampler.chain(logit_bias={i: -np.inf for i in range(1024)})
    g = generate(ctx, ids, 4, ban)
    with pytest.raises(SamplingError, match='no valid candidates'): next(g)
    assert g.n_past() == len(ids) and next(generate(ctx, ids, 1, seq_id=1)).id >= 0

def test_timings_without_work(): assert repr(Timings()) == 'prompt 0 tokens; decode 0 tokens; sampling 0.0 ms'

class Guesser(Generation):
    "Drafts right and wrong tokens in turn; verified by equality"
    def step(self, last):
        draft = self.drafts[len(self.ids)] if len(self.ids) in self.drafts else []
        rows, got = self.decode([last] + draft), []
        start = self.n_past() - len(draft)
        for row, want in zip(rows, draft + [None]):
            got.append(self.choose(row))
            if got[-1][0] != want: break
        self.ctx.memory.seq_rm(self.seq_id, start + len(got) - 1, -1)
        return got

@pytest.mark.parametrize('sampler', [Greedy, lambda: lr.Sampler.chain(seed=11, temperature=1.2,
                                                                      repeat_penalty=1.1)])
def test_a_step_may_give_several_tokens(model, ids, sampler):
    plain = [t.id for t in generate(lr.Context(model, n_ctx=256), ids, 24, sampler(), stop_at_eog=False)]
    g = Guesser(lr.Context(model, n_ctx=256), ids, 24, sampler(), stop_at_eog=False)
    g.drafts = {1: plain[1:4], 5: [1, 2], 6: plain[6:8] + [9], 12: plain[12:17]}
    assert [t.id for t in g] == plain

@pytest.mark.real
def test_smollm2_goes_on_as_recorded():
    path = real('SmolLM2-135M-Instruct.Q4_1.gguf')
    gold = json.loads(data('golden', 'real-smollm2-135m-instruct-q4_1.json').read_text())
    p = next(p for p in gold['prompts'] if p['kind'] == 'chat')
    run = p['float']
    n = min(12, next((i for i, m in enumerate(run['margins']) if m < .01), 12))
    ctx = lr.Context(lr.load(path), n_ctx=512)
    g = generate(ctx, p['prompt_ids'], n, stop_at_eog=False)
    assert [t.id for t in g] == run['greedy_ids'][:n]
    one = Dist(5).sample(read_prompt(ctx, [g.ids[-1]]))
    assert 0 <= one < len(ctx.model.vocab)
