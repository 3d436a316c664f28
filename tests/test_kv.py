"The KV memory: what is stored is what is read, whatever happened to the books in between"
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from conftest import data
from llamaref.compute.device import Device
from llamaref.context.batch import Batch, check_batch, split_equal, split_simple
from llamaref.errors import ContextError
from llamaref.memory.kv import KVMemory, LayerKV, context_sizes, window_cells

DEV = Device.get('numpy')

class Rope:
    def __init__(self, n_rot, base, neox):
        self.inv, self.neox = base ** (-np.arange(0, n_rot, 2) / n_rot), neox
    def __call__(self, delta):
        a = np.asarray(delta)[:, None] * self.inv
        return np.stack([np.cos(a), np.sin(a)], -1).astype(np.float32)

FULL, SLIDE = Rope(8, 100., True), Rope(6, 30., False)
LAYERS = [LayerKV(2, 8, 4, 4, SLIDE), LayerKV(1, 8, 8, 0, FULL), LayerKV(2, 8, 4, 4, SLIDE)]

def memory(layers=LAYERS, n_ctx=12, n_seq_max=3, n_ubatch=4, pad=4, dev=DEV, **kw):
    return KVMemory(dev, layers, n_ctx, n_seq_max, n_ubatch, pad=pad, **kw)

def piece(pos, ids):
    ids = ids if isinstance(ids, tuple) else (ids,)
    return SimpleNamespace(pos=np.array(pos, np.int32), seqs=[ids] * len(pos))

def books(mem):
    return [(c.pos.tolist(), c.seqs.tolist(), c.shift.tolist(), c.head, c.used,
             [(line.cell[:line.n].tolist(), line.at[:line.n].tolist()) for line in c.lines])
            for g in mem.groups for c in g.streams]

def turned(k, rope, pos): # one key (H, D)
    "The key as it is stored at a position"
    return DEV.rope(DEV.upload(k[None]), DEV.upload(rope(np.array([pos]))), rope.neox).numpy()[0]

def stored_key(label, layer, pos):
    k = np.random.default_rng(label).normal(size=(layer.n_head_kv, layer.head_dim_k)).astype('f')
    return turned(k, layer.rope, pos)

class Told(KVMemory):
    "A memory that also knows which token is in which row: its label is the whole value"
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.next_label = 1

    def put(self, pos, ids):
        self.update()
        u = piece(pos, ids)
        plan = self.prepare([u])
        if plan is None: return None
        self.place(u, plan[0])
        labels = range(self.next_label, self.next_label + len(pos))
        self.next_label += len(pos)
        for i, l in enumerate(self.layers):
            k = np.stack([stored_key(n, l, p) for n, p in zip(labels, pos)])
            v = np.repeat(np.array(labels, 'f'), l.n_head_kv * l.head_dim_v).reshape(len(pos), -1)
            idx = DEV.upload(plan[0][self.group_of(i)])
            for buf, x in zip(self.layer(i), (k.reshape(len(pos), -1), v)):
                DEV.set_rows(buf.reshape(buf.shape[0], -1), DEV.upload(x), idx)
        return [*labels]

    def seen(self, i, s):
        "(position, label) of what sequence `s` would read in layer `i`, keys checked on the way"
        g, l = self.groups[self.group_of(i)], self.layers[i]
        cells, _ = g.read([(s,)], np.array([g.of(s).seq_pos_max(s)], np.int32), causal=False)
        K, V = (t.numpy() for t in self.layer(i))
        books = g.of(s)
        out = []
        for c in cells.tolist():
            pos, label = int(books.pos[c - g.stream(s) * g.size]), int(V[c, 0, 0])
            tol = 1e-5 if self.type_k == 'f32' else 2e-2
            np.testing.assert_allclose(K[c], stored_key(label, l, pos), atol=tol)
            out.append((pos, label))
        return out

seq, edge = st.integers(0, 2), st.integers(-1, 14)
OPS = st.one_of(
    st.tuples(st.just('put'), seq, st.integers(1, 4)),
    st.tuples(st.just('seq_rm'), st.integers(-1, 2), edge, edge),
    st.tuples(st.just('seq_cp'), seq, seq),
    st.tuples(st.just('seq_keep'), seq),
    st.tuples(st.just('seq_add'), seq, edge, st.just(-1), st.integers(-5, 5)),
    st.tuples(st.just('seq_div'), seq, edge, st.just(-1), st.integers(1, 3), st.just(True)),
    st.tuples(st.just('update')))

@settings(max_examples=60, deadline=None)
@given(st.lists(OPS, max_size=10), st.booleans(), st.sampled_from(['f32', 'f16']))
def test_what_was_stored_is_what_is_read(ops, unified, type_k):
    "Random operations, lazily paid; the full layer against a plain list per sequence"
    mem = Told(DEV, LAYERS, 12 if unified else 36, 3, 4, unified, type_k, pad=4)
    naive = {s: [] for s in range(3)}   # lists of [position, label], shared by forks in one pool
    for name, *args in ops:
        if name == 'put':
            s, n = args
            pos = [max([mem.seq_pos_max(s)] + [t[0] for t in naive[s]]) + 1 + i for i in range(n)]
            labels = mem.put(pos, s)
            naive[s] += [list(t) for t in zip(pos, labels or ())]
            continue
        getattr(mem, name)(*args)
        s, *rest = args or [0]
        lo, hi = (max(rest[0], 0), rest[1] if rest[1] >= 0 else 999) if len(rest) > 1 else (0, 999)
        hit = [t for t in naive[s] if lo <= t[0] < hi] if s >= 0 else []
        if name == 'seq_rm':
            for r in range(3) if s < 0 else [s]: naive[r] = [t for t in naive[r] if not lo <= t[0] < hi]
        if name == 'seq_cp' and s != rest[0]:
            d = rest[0]
            if unified: naive[d] += [t for t in naive[s] if not any(t is o for o in naive[d])]
            else: naive[d] = [list(t) for t in naive[s]]
        if name == 'seq_keep': naive = {r: naive[r] if r == s else [] for r in range(3)}
        if name == 'seq_add':
            for t in hit: t[0] += rest[2]
            naive = {r: [t for t in naive[r] if t[0] >= 0] for r in range(3)}
        if name == 'seq_div':
            for t in hit: t[0] //= rest[2]
    mem.update()
    for s in range(3):
        assert sorted(mem.seen(1, s)) == sorted(map(tuple, naive[s]))
        for i in (0, 2): assert set(mem.seen(i, s)) <= set(map(tuple, naive[s]))   # a window may hold less
    assert not any(c.shift.any() for g in mem.groups for c in g.streams) and mem.copies == []

@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=6),
       st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=4), st.booleans())
def test_prepare_changes_nothing_and_place_follows_it(before, ask, unified):
    mem, last = memory(unified=unified), [-1] * 3
    def pieces(puts):
        out = []
        for s, n in puts: out.append(piece(range(last[s] + 1, last[s] + 1 + n), s)); last[s] += n
        return out
    for put in before:
        old = list(last)
        u = pieces([put]); plan = mem.prepare(u)
        if plan is None: last[:] = old
        else: mem.place(u[0], plan[0])
    state = books(mem)
    us = pieces(ask)
    plan = mem.prepare(us)
    assert books(mem) == state
    if plan is None: return
    for u, where in zip(us, plan):
        for g, w in zip(mem.groups, where):
            assert w.dtype == np.int32 and len(set(w.tolist())) == len(w)
            for r, s in zip(w, u.seqs):
                c = g.of(s[0])
                i = r - g.stream(s[0]) * g.size
                assert 0 <= i < g.size and (c.pos[i] < 0 or g.window)    # live only behind a window
        mem.place(u, where)
        for write, cells, ranges in mem.inputs(u, where):
            assert write.dtype == cells.dtype == ranges.dtype == np.int32 and ranges.shape == (len(u.pos), 2)
            assert (cells[ranges[:, 1] - 1] == write).all()               # a row sees itself, last

def test_a_batch_that_only_partly_fits_is_refused_whole():
    mem = memory(n_seq_max=1)
    state = books(mem)
    assert mem.prepare([piece(range(4), 0), piece(range(4, 8), 0), piece(range(8, 13), 0)]) is None
    assert books(mem) == state
    assert len(mem.prepare([piece(range(4), 0), piece(range(4, 8), 0), piece(range(8, 12), 0)])) == 3

# sizes: spec 10, section 5

@pytest.mark.parametrize('n_ctx,n_seq,unified,want', [
    (1, 1, True, (256, 256)), (256, 1, True, (256, 256)), (257, 4, True, (512, 512)),
    (512, 2, False, (512, 256)),
    (1000, 3, False, (1536, 512)), (100, 4, False, (1024, 256)), (4096, 1, False, (4096, 4096))])
def test_context_sizes(n_ctx, n_seq, unified, want): assert context_sizes(n_ctx, n_seq, unified) == want

@pytest.mark.parametrize('size,W,n_ubatch,n_seq,want', [
    (1024, 16, 32, 1, 256), (4096, 512, 512, 1, 1024), (4096, 512, 512, 4, 2560), (512, 512, 512, 1, 512),
    (32768, 1024, 512, 1, 1536)])
def test_window_cells(size, W, n_ubatch, n_seq, want): assert window_cells(size, W, n_ubatch, n_seq) == want

def test_groups_and_their_sizes():
    mem = KVMemory(DEV, LAYERS, 1000, 2, 64)
    assert [(g.window, g.size, g.layers) for g in mem.groups] == [(0, 1024, [1]), (4, 256, [0, 2])]
    assert [mem.group_of(i) for i in range(3)] == [1, 0, 1]
    assert [t.shape for t in mem.layer(0)] == [(256, 2, 8), (256, 2, 4)]
    assert [t.shape for t in mem.layer(1)] == [(1024, 1, 8), (1024, 1, 8)]
    full = KVMemory(DEV, LAYERS, 1000, 2, 64, swa_full=True, type_k='f16', type_v='f16')
    assert [g.size for g in full.groups] == [1024, 1024] and full.layer(0)[0].type == 'f16'
    apart = KVMemory(DEV, LAYERS, 1000, 2, 64, unified=False)
    assert (apart.n_ctx, apart.n_ctx_seq, apart.layer(1)[0].shape[0]) == (1024, 512, 1024)
    assert apart.nbytes == sum(t.nbytes for i in range(3) for t in apart.layer(i))

def test_a_model_of_sliding_layers_only():
    mem = KVMemory(DEV, [LayerKV(1, 4, 4, 8)], 1000, n_ubatch=16)
    assert [(g.window, g.size) for g in mem.groups] == [(8, 256)] and mem.seq_pos_min(0) == -1

def test_the_narrowest_window_answers_for_positions():
    mem = memory(n_ctx=40, n_seq_max=1)
    for p in range(0, 24, 4):
        u = piece(range(p, p + 4), 0); [w] = mem.prepare([u]); mem.place(u, w)
    assert mem.groups[0].of(0).seq_pos_min(0) == 0
    assert mem.seq_pos_min(0) == 24 - 8 and mem.seq_pos_max(0) == 23      # 8 cells: window 4 + ubatch 4

# context shift

@pytest.mark.parametrize('neox', [False, True])
def test_acceptance_5_shift_equals_a_fresh_run(neox):
    "One attention layer: keys depend on the token alone, so shifted must equal fresh (2e-3 asked)"
    rope, rng = Rope(8, 10000., neox), np.random.default_rng(1)
    emb, q = rng.normal(size=(6, 2, 8)).astype('f'), rng.normal(size=(1, 4, 8)).astype('f')
    turn = lambda x, p: DEV.rope(DEV.upload(x), DEV.upload(rope(np.array(p))), neox)
    def run(mem, tokens, pos):
        u = piece(pos, 0); [where] = mem.prepare([u]); mem.place(u, where)
        k, v = mem.layer(0)
        flat = lambda t: t.reshape(t.shape[0], 16)
        DEV.set_rows(flat(k), flat(turn(emb[tokens], pos)), DEV.upload(where[0]))
        DEV.set_rows(flat(v), DEV.upload(emb[tokens].reshape(-1, 16)), DEV.upload(where[0]))
    def ask(mem, p):
        cells, ranges = mem.groups[0].read([(0,)], np.array([p]))
        lists = DEV.upload(cells), DEV.upload(ranges)
        return DEV.attention(turn(q, [p]), *mem.layer(0), *lists, 8**-.5).numpy()
    layers = [LayerKV(2, 8, 8, rope=rope)]
    old, new = memory(layers, 8, 1), memory(layers, 8, 1)
    run(old, [0, 1, 2, 3, 4, 5], range(6))
    old.seq_rm(0, 2, 4); old.seq_add(0, 4, -1, -2); old.update()
    run(new, [0, 1, 4, 5], range(4))
    np.testing.assert_allclose(ask(old, 4), ask(new, 4), atol=1e-5)

def test_a_shift_is_paid_once_however_often_it_is_made():
    mem = Told(DEV, LAYERS, 12, 1, 4, pad=4)
    mem.put(range(4), 0); mem.put(range(4, 8), 0)
    for d in (3, -1, 5, -4): mem.seq_add(0, 2, -1, d)
    calls, one = [], DEV.rope_cells
    try:
        DEV.rope_cells = lambda k, cs, neox: (calls.append(k.shape[0]), one(k, cs, neox))[1]
        mem.update(); mem.update()
    finally: del DEV.rope_cells
    assert len(calls) == 3                       # once a layer
    assert [p for p, _ in mem.seen(1, 0)] == [0, 1, 5, 6, 7, 8, 9, 10]

def test_a_long_shift_goes_in_pieces():
    rope = Rope(4, 100., True)
    mem = KVMemory(DEV, [LayerKV(1, 4, 4, rope=rope)], 6000)
    u = piece(range(5900), 0); [where] = mem.prepare([u]); mem.place(u, where)
    mem.layer(0)[0].write(np.ones(mem.layer(0)[0].shape, 'f'))
    mem.seq_rm(0, 0, 100); mem.seq_add(0, 100, -1, -100); mem.update()
    K = mem.layer(0)[0].numpy()
    back = turned(np.ones((1, 4), 'f'), rope, -100)
    np.testing.assert_allclose(K[100:5900], np.broadcast_to(back, (5800, 1, 4)), atol=1e-6)
    assert (K[:100] == 1).all() and (K[5900:] == 1).all()

def test_copies_between_streams_keep_order_and_debts():
    mem = Told(DEV, LAYERS, 36, 3, 4, unified=False, pad=4)
    mem.put(range(3), 0)
    mem.seq_add(0, 0, -1, 2)      # owed by 0, inherited by 1
    mem.seq_cp(0, 1)
    mem.seq_add(0, 0, -1, 1)      # owed by 0 alone
    mem.seq_cp(1, 2)              # a copy of a copy
    mem.seq_rm(0)
    mem.update()
    assert [p for p, _ in mem.seen(1, 1)] == [2, 3, 4] == [p for p, _ in mem.seen(1, 2)]
    assert [label for _, label in mem.seen(0, 2)] == [1, 2, 3]
    assert mem.seq_pos_max(0) == -1

def test_a_stream_copy_replaces_the_destination():
    mem = Told(DEV, LAYERS, 36, 3, 4, unified=False, pad=4)
    mem.put(range(3), 0); mem.put(range(4), 1)
    mem.seq_cp(0, 1, 0, -1); mem.update()
    assert mem.seen(1, 1) == [(0, 1), (1, 2), (2, 3)]
    mem.seq_cp(2, 1); mem.update()        # an empty source empties it
    assert mem.seq_pos_max(1) == -1 and mem.seen(1, 0) == [(0, 1), (1, 2), (2, 3)]

# refusals

def test_partial_copies_between_streams_are_refused():
    mem = Told(DEV, LAYERS, 36, 3, 4, unified=False, pad=4)
    mem.put(range(4), 0)
    state = books(mem)
    with pytest.raises(ContextError, match='only whole sequences'): mem.seq_cp(0, 1, 0, 3)
    assert books(mem) == state and mem.copies == []
    mem.seq_cp(0, 1, 0, 4)                # the range covers all of it

@pytest.mark.parametrize('call', [
    ('seq_cp', 0, 3), ('seq_cp', -1, 0), ('seq_keep', 3), ('seq_add', 9, 0, -1, 1), ('seq_div', 0, 0, -1, 0),
    ('seq_pos_max', 3), ('seq_add', 0, 0, -1, 2**31 - 1)])
def test_wrong_arguments_raise_and_change_nothing(call):
    mem = Told(DEV, LAYERS, 12, 3, 4, pad=4)
    mem.put(range(3), 0)
    state = books(mem)
    with pytest.raises(ContextError) as e: getattr(mem, call[0])(*call[1:])
    assert e.value.code == -1 and books(mem) == state

def test_seq_rm_answers():
    mem = memory()
    assert [mem.seq_rm(0, 5, -1), mem.seq_rm(-1), mem.seq_rm(3), mem.seq_rm(-2)] == [True, True, False, False]

def test_no_rope_no_shift():
    mem = memory([LAYERS[0], LayerKV(1, 4, 4)])
    assert mem.can_shift is False and memory().can_shift is True
    for call in (lambda: mem.seq_add(0, 0, -1, 1), lambda: mem.seq_div(0, 0, -1, 2)):
        with pytest.raises(ContextError, match='cannot be renumbered'): call()

@pytest.mark.parametrize('name,value', [('n_ctx', 0), ('n_seq_max', 0), ('n_seq_max', 257),
                                        ('type_k', 'q4_0'), ('type_v', 'bf16'), ('layers', [])])
def test_settings_that_cannot_be(name, value):
    with pytest.raises(ContextError, match=name.removesuffix('s')): memory(**{name: value})

def test_no_room_for_buffers_is_code_minus_two():
    class Full:
        name = 'full'
        def zeros(self, shape, type): raise MemoryError
    with pytest.raises(ContextError, match='32.0 GiB') as e:
        KVMemory(Full(), [LayerKV(8, 128, 128)] * 32, 131072)
    assert e.value.code == -2

def test_rollback_and_clear():
    mem = Told(DEV, LAYERS, 12, 3, 4, pad=4)
    mem.put(range(4), 0); mem.seq_cp(0, 1); mem.put([4, 5], 0); mem.put([4], 1)
    mem.rollback({0: 4, 1: 4})
    assert mem.seen(1, 0) == mem.seen(1, 1) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    mem.clear(data=True)
    assert [mem.seq_pos_max(s) for s in range(3)] == [-1] * 3
    assert not any(t.numpy().any() for i in range(3) for t in mem.layer(i))

def test_rows_of_two_sequences_see_what_the_first_sees():
    mem = memory()
    u = SimpleNamespace(pos=np.array([0, 1, 2, 2], np.int32), seqs=[(1, 0), (1, 0), (1,), (0,)])
    [w] = mem.prepare([u]); mem.place(u, w)
    _, cells, ranges = mem.inputs(u, w)[0]
    rows = [cells[a:b].tolist() for a, b in ranges]
    assert rows == [[0], [0, 1], [0, 1, 2], [0, 1, 3]]

def test_non_causal_rows_see_each_other():
    mem = memory()
    u = piece(range(3), 0); [w] = mem.prepare([u]); mem.place(u, w)
    assert mem.inputs(u, w, causal=False)[0][2].tolist() == [[0, 3]] * 3

# the order of attention depends on positions alone

def test_lists_do_not_depend_on_the_life_of_the_memory():
    def seen(mem, i=1): return [label for _, label in mem.seen(i, 0)]
    calm, busy = Told(DEV, LAYERS, 12, 3, 4, pad=4), Told(DEV, LAYERS, 12, 3, 4, pad=4)
    for p in range(4): calm.put([p], 0)
    busy.put([0, 1, 2], 2); busy.seq_rm(2, 1, 2); busy.next_label = 1
    for p in range(4): busy.put([p], 0)
    assert seen(calm) == seen(busy) == [1, 2, 3, 4]
    assert seen(calm, 0) == seen(busy, 0)

# the books against the peer's answers, no model needed

def script(prefix):
    doc = json.loads(data('golden', 'memory.json').read_text())
    return [pytest.param(s, id=s['name']) for s in doc['scenarios'] if s['name'].startswith(prefix)]

def decode(mem, step, n_ubatch):
    batch = Batch(step['tokens'], step['pos'], step['seq'], step['output'])
    try: rows = check_batch(batch, 512, mem.n_seq_max, mem.seq_pos_max, mem.seq_pos_min)
    except ContextError as e: return e.code
    pieces = (split_simple if mem.unified else split_equal)(rows, n_ubatch)
    plan = mem.prepare(pieces)
    if plan is None: return 1
    for u, where in zip(pieces, plan): mem.place(u, where)
    return 0

def follow(mem, step, n_ubatch):
    a = {k: step.get(k) for k in ('seq', 'src', 'dst', 'p0', 'p1', 'delta', 'd')}
    if step['op'] == 'decode': return decode(mem, step, n_ubatch)
    if step['op'] == 'seq_rm': return mem.seq_rm(a['seq'], a['p0'], a['p1'])
    if step['op'] == 'seq_cp': return mem.seq_cp(a['src'], a['dst'], a['p0'], a['p1'])
    if step['op'] == 'seq_keep': return mem.seq_keep(a['seq'])
    if step['op'] == 'seq_add': return mem.seq_add(a['seq'], a['p0'], a['p1'], a['delta'])
    if step['op'] == 'seq_div': return mem.seq_div(a['seq'], a['p0'], a['p1'], a['d'])
    if step['op'] == 'clear': return mem.clear()

@pytest.mark.parametrize('s', script('attn_') + script('swa_'))
def test_books_follow_the_peer(s):
    "Return codes and position ranges after each step, up to the first that needs saved states"
    c, rope = s['context'], Rope(4, 10., True)
    windows = (0,) if s['name'].startswith('attn') else (16, 0)
    sizes = [c[k] for k in ('n_ctx', 'n_seq_max', 'n_ubatch', 'kv_unified')]
    mem = KVMemory(DEV, [LayerKV(1, 4, 4, w, rope) for w in windows], *sizes)
    for n, step in enumerate(s['steps']):
        if step['op'] in ('state_get', 'state_set', 'new_context'): break
        got = follow(mem, step, c['n_ubatch'])
        if 'returns' in step: assert got == step['returns'], (n, step['op'])
        ranges = [[mem.seq_pos_min(q), mem.seq_pos_max(q)] for q in range(c['n_seq_max'])]
        assert ranges == step['ranges'], (n, step['op'])
