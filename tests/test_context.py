"Contexts: outputs, refusals, recovery, sequences, pooling; spec 10 sections 5 and 6"
import threading

import numpy as np
import pytest

import llamaref as lr
from conftest import data
from llamaref.errors import ContextError, DeviceError, ModelError

@pytest.fixture(scope='module', params=['numpy', 'opencl'])
def device(request):
    try: return lr.Device.get(request.param)
    except DeviceError as e: pytest.skip(str(e))

@pytest.fixture(scope='module')
def model(device): return lr.load(data('models', 'rnd-qwen3.gguf'), device)

@pytest.fixture
def ctx(model): return lr.Context(model, n_ctx=256, n_seq_max=3)

IDS = list(range(40, 60))

def same(a, b, device):
    "Equal: to the bit on the compiled device, to rounding on numpy"
    if device.name.startswith('opencl'): np.testing.assert_array_equal(a, b)
    else: np.testing.assert_allclose(a, b, atol=1e-4)

def test_rows_of_flagged_positions_only(ctx):
    b = lr.Batch()
    for i, flag in enumerate([0, 0, 1, 0, 1]): b.add(IDS[i], i, [0], bool(flag))
    out = ctx.decode(b)
    assert out.logits.shape == (2, ctx.model.n_vocab)
    np.testing.assert_array_equal(out.row(-1), out.row(4))
    np.testing.assert_array_equal(out.row(-2), out.row(2))
    for i, said in ((0, r'\[0\] != true'), (3, r'\[3\] != true'), (5, 'row 5'), (-3, 'output -3')):
        with pytest.raises(ContextError, match=said): out.row(i)

def test_all_last_none(ctx):
    assert ctx.decode(IDS, logits='all').logits.shape[0] == len(IDS)
    assert ctx.decode(IDS, logits='last').logits.shape[0] == 1
    assert ctx.decode(IDS, logits='none').logits.shape == (0, ctx.model.n_vocab)
    assert ctx.memory.seq_pos_max(0) == 3 * len(IDS) - 1

def test_positions_continue_and_pieces_equal_the_whole(ctx, device):
    whole = ctx.decode(IDS, logits='all').logits
    parts = np.concatenate([ctx.decode(IDS[i:i+3], seq_id=1, logits='all').logits for i in range(0, 20, 3)])
    same(whole, parts, device)

def test_ubatches_equal_one_batch(model, device):
    whole = lr.Context(model, n_ctx=256).decode(IDS, logits='all').logits
    for n in (1, 7, 16):
        pieces = lr.Context(model, n_ctx=256, n_ubatch=n)
        same(pieces.decode(IDS, logits='all').logits, whole, device)

@pytest.mark.parametrize('unified', [True, False])
def test_interleaved_sequences_come_back_in_batch_order(model, device, unified):
    alone = lr.Context(model, n_ctx=256)
    want = {}
    for s in range(3):
        alone.memory.clear()
        want[s] = alone.decode(IDS[s:s+8], logits='all').logits
    ctx = lr.Context(model, n_ctx=768, n_seq_max=3, n_ubatch=9, kv_unified=unified)
    b = lr.Batch()
    for i in range(8):
        for s in (2, 0, 1): b.add(IDS[s + i], i, [s], True)
    got = ctx.decode(b).logits
    for n, s in enumerate((2, 0, 1)): same(got[n::3], want[s], device)

def test_fork_continues_like_the_original(ctx, device):
    ctx.decode(IDS)
    ctx.memory.seq_cp(0, 2)
    same(ctx.decode([7], seq_id=2).logits, ctx.decode([7], seq_id=0).logits, device)

def state(ctx): return [(ctx.memory.seq_pos_min(s), ctx.memory.seq_pos_max(s)) for s in range(ctx.n_seq_max)]

@pytest.mark.parametrize('batch, code, said', [
    ([], -1, 'empty'), ([10**6], -1, 'token'), ([-1], -1, 'token'), ([5] * 300, 1, 'no memory slot')])
def test_refusals_change_nothing(ctx, batch, code, said):
    ctx.decode(IDS)
    before = state(ctx)
    with pytest.raises(ContextError) as e: ctx.decode(batch)
    assert e.value.code == code and said in str(e.value)
    assert state(ctx) == before

def test_more_rows_than_n_batch(model):
    ctx = lr.Context(model, n_ctx=256, n_batch=8)
    with pytest.raises(ContextError, match=r'20.*8') as e: ctx.decode(IDS)
    assert e.value.code == -1

def test_more_outputs_than_reserved_names_both_numbers(model):
    ctx = lr.Context(model, n_ctx=256, n_outputs_max=3)
    with pytest.raises(ContextError, match=r'20.*3') as e: ctx.decode(IDS, logits='all')
    assert e.value.code == -1 and ctx.memory.seq_pos_max(0) == -1
    assert ctx.decode(IDS).logits.shape[0] == 1

def test_a_failure_in_the_second_piece_keeps_the_first(model):
    ctx, seen = lr.Context(model, n_ctx=256, n_ubatch=8), []
    def trip(name, i, x):
        seen.append(i)
        if seen.count(0) == 2: raise RuntimeError('out')
    with pytest.raises(ContextError) as e: ctx.decode(IDS, tap=trip)
    assert e.value.code == -3 and ctx.memory.seq_pos_max(0) == 7
    whole = lr.Context(model, n_ctx=256).decode(IDS).logits
    np.testing.assert_allclose(ctx.decode(IDS[8:]).logits, whole, atol=1e-4)

def test_an_interrupt_leaves_the_context_usable(model):
    ctx = lr.Context(model, n_ctx=256)
    def stop(name, i, x): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): ctx.decode(IDS, tap=stop)
    assert ctx.memory.seq_pos_max(0) == -1
    np.testing.assert_array_equal(ctx.decode(IDS).logits, lr.Context(model, n_ctx=256).decode(IDS).logits)

def test_eager_equals_replay_bit_for_bit(model):
    a, b = lr.Context(model, n_ctx=256), lr.Context(model, n_ctx=256)
    for ids in (IDS, [3], [4], IDS[:5]):
        eager = b.decode(ids, logits='all', tap=lambda *a: None).logits
        np.testing.assert_array_equal(a.decode(ids, logits='all').logits, eager)

def test_many_shapes_do_not_pile_up(model):
    ctx = lr.Context(model, n_ctx=256)
    for n in range(1, 21):
        ctx.memory.clear()
        ctx.decode(IDS[:n])
    assert len(ctx.plans) == 16
    before = sum(b.nbytes for b in ctx.arena.blocks) if ctx.arena.blocks else 0
    for _ in range(3):
        for n in range(1, 21):
            ctx.memory.clear()
            ctx.decode(IDS[:n])
    assert sum(b.nbytes for b in ctx.arena.blocks) <= 1.5 * before + 4096

def test_two_contexts_in_two_threads(model):
    want = lr.Context(model, n_ctx=256).decode(IDS, logits='all').logits
    got = {}
    def work(k):
        ctx = lr.Context(model, n_ctx=256)
        for _ in range(10):
            ctx.memory.clear()
            got[k] = ctx.decode(IDS, logits='all').logits
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()
    for k in range(2): np.testing.assert_array_equal(got[k], want)

@pytest.mark.parametrize('pooling, pick', [
    ('mean', lambda h: h.mean(0)), ('cls', lambda h: h[0]), ('last', lambda h: h[-1])])
def test_pooling_of_two_sequences(model, pooling, pick):
    rows = lr.Context(model, n_ctx=256, n_seq_max=2, embeddings=True)
    b = lr.Batch()
    for i in range(6):
        for s in (1, 0): b.add(IDS[i + s], i, [s], False)
    h = rows.decode(b)
    assert h.embeddings.shape == (12, model.hparams.n_embd)
    out = lr.Context(model, n_ctx=256, n_seq_max=2, pooling=pooling, n_ubatch=5).decode(b)
    assert out.seqs == (0, 1)
    for s in (0, 1): np.testing.assert_allclose(out.embeddings[s], pick(h.embeddings[1 - s::2]), atol=1e-5)
    with pytest.raises(ContextError, match='embeddings=True'): out.logits

@pytest.mark.parametrize('kw', [
    dict(n_ctx=-1), dict(n_batch=0), dict(n_seq_max=0), dict(n_seq_max=257), dict(type_k='q4_0'),
    dict(pooling='rank'), dict(n_ubatch=0), dict(n_outputs_max=-1)])
def test_senseless_settings_are_named(model, kw):
    with pytest.raises(ContextError, match=next(iter(kw))): lr.Context(model, **{'n_ctx': 256, **kw})

def test_f16_memory_is_close_to_f32(model):
    a = lr.Context(model, n_ctx=256).decode(IDS).logits
    b = lr.Context(model, n_ctx=256, type_k='f16', type_v='f16').decode(IDS).logits
    assert 0 < abs(a - b).max() < .1      # the README of the golden data: up to 0.08

def test_context_shift_equals_a_fresh_run(device):
    "Spec 10, acceptance 5: drop the front, renumber; a one-layer model then equals a fresh run of the rest"
    model = lr.load(data('models', 'rnd-qwen3.gguf'), device)
    model.decoder.hp.n_layer, model.decoder.blocks = 1, model.decoder.blocks[:1]
    ctx = lr.Context(model, n_ctx=256)
    ctx.decode(IDS[:6])
    ctx.memory.seq_rm(0, 0, 2)
    ctx.memory.seq_add(0, 2, -1, -2)
    assert (ctx.memory.seq_pos_min(0), ctx.memory.seq_pos_max(0)) == (0, 3)
    fresh = lr.Context(model, n_ctx=256)
    fresh.decode(IDS[2:6])
    np.testing.assert_allclose(ctx.decode([9]).logits, fresh.decode([9]).logits, atol=2e-3)

def test_overrides_and_vocab_only():
    m = lr.load(data('models', 'rnd-qwen3.gguf'), 'numpy', override={'qwen3.context_length': 64})
    assert m.hparams.n_ctx_train == 64 and lr.Context(m).n_ctx == 256     # padded
    v = lr.load(data('models', 'rnd-qwen3.gguf'), vocab_only=True)
    with pytest.raises(ContextError, match='vocab_only'): lr.Context(v)

def test_a_wrong_act_quant_is_refused():
    with pytest.raises(ModelError, match="act_quant is 'q4'"):
        lr.load(data('models', 'rnd-qwen3.gguf'), act_quant='q4')
