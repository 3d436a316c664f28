"Operations on every device against formulas in float64; batch invariance; plans; threads; wrong calls"
import threading

import numpy as np
import pytest

from llamaref.compute.device import OPS, Device, list_devices
from llamaref.compute.plan import Arena, Inputs
from llamaref.errors import DeviceError

NAMES = [n for n, _ in list_devices()]
f32, f16, i32 = np.float32, np.float16, np.int32
same = np.testing.assert_array_equal
rng = np.random.default_rng(7)
START = rng.bit_generator.state

@pytest.fixture(autouse=True)
def same_numbers_in_any_order(): rng.bit_generator.state = START

@pytest.fixture(params=['numpy', 'opencl:0'])
def dev(request):
    if request.param not in NAMES: pytest.skip(f'no {request.param} device on this machine')
    return Device.get(request.param)

@pytest.fixture
def ocl():
    if 'opencl:0' not in NAMES: pytest.skip('no OpenCL device on this machine')
    return Device.get('opencl')

def normal(*shape, s=1.): return (s * rng.normal(size=shape)).astype(f32)
def ints(*a): return np.array(a, i32)

def run(dev, op, *args, **kw):
    "The operation on arrays; arrays back. An operation in place gives its first argument back"
    up = lambda a: dev.upload(a) if isinstance(a, np.ndarray) else a
    args, kw = [up(a) for a in args], {k: up(a) for k, a in kw.items()}
    out = getattr(dev, op)(*args, **kw)
    if out is None: return args[0].numpy()
    return tuple(o.numpy() for o in out) if isinstance(out, tuple) else out.numpy()

def close(got, want, tol=1e-6):
    "Within tol of the largest expected value; same nans and infinities"
    want = np.asarray(want)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    with np.errstate(all='ignore'): same(got[~finite], want[~finite].astype(got.dtype))
    if finite.any():
        err = np.abs(got[finite].astype(float) - want[finite]).max()
        assert err <= tol * max(1., np.abs(want[finite]).max()), err

# ---- element by element ----
sigmoid = lambda x: np.where(x >= 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x)))
silu = lambda x: x * sigmoid(x)
gelu = lambda x: .5 * x * (1 + np.tanh(.79788456 * (x + .044715 * x**3)))
ONE = dict(sigmoid=sigmoid, silu=silu, gelu=gelu)
TWO = dict(add=lambda a, b: a + b, mul=lambda a, b: a * b,
           swiglu=lambda a, b: silu(a) * b, geglu=lambda a, b: gelu(a) * b)
SHAPES = [(1, 1), (1, 63), (3, 65), (65, 7), (2, 3, 513), (0, 5), (5,)]

@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('op', ONE)
def test_gates(dev, op, shape):
    x = normal(*shape, s=3.)
    close(run(dev, op, x), ONE[op](x.astype(float)))

@pytest.mark.parametrize('op', ONE)
def test_gates_far_out(dev, op):
    x = np.array([[-1e30, -1000, -90, -20, -1e-30, 0, 1e-30, 20, 90, 1000, 1e9]], f32)
    with np.errstate(all='ignore'): close(run(dev, op, x), ONE[op](x.astype(float)), 1e-6)

@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('op', TWO)
def test_pairs(dev, op, shape):
    a, b = normal(*shape), normal(*shape)
    close(run(dev, op, a, b), TWO[op](a.astype(float), b.astype(float)))

@pytest.mark.parametrize('shape', SHAPES[:-1])
@pytest.mark.parametrize('op', ['add', 'mul'])
def test_one_row_for_all(dev, op, shape):
    a, b = normal(*shape), normal(shape[-1])
    close(run(dev, op, a, b), TWO[op](a.astype(float), b.astype(float)))

@pytest.mark.parametrize('shape', SHAPES)
def test_scale_and_softcap(dev, shape):
    x = normal(*shape, s=40.)
    same(run(dev, 'scale', x, .125), x * f32(.125))
    close(run(dev, 'softcap', x, 30.), 30 * np.tanh(x.astype(float) / 30))

def test_softcap_of_the_endless(dev):
    close(run(dev, 'softcap', np.array([[np.inf, -np.inf, 1e38]], f32), 50.), [[50, -50, 50]])

# ---- over rows ----
@pytest.mark.parametrize('w', [True, False])
@pytest.mark.parametrize('shape', [(1, 1), (1, 64), (3, 63), (63, 65), (2, 5, 16), (7, 1000), (0, 8)])
def test_rms_norm(dev, shape, w):
    x, w = normal(*shape), normal(shape[-1]) if w else None
    y = x.astype(float) / np.sqrt((x.astype(float)**2).mean(-1, keepdims=True) + 1e-5) if x.size else x
    close(run(dev, 'rms_norm', x, w, 1e-5), y if w is None else y * w)

def test_rms_norm_at_the_edges(dev):
    x = np.zeros((2, 40), f32); x[1] = 1e-20
    same(run(dev, 'rms_norm', x[:1], None, 1e-6), 0)
    close(run(dev, 'rms_norm', x[1:], None, 1e-6), x[1:] * 1e3)
    close(run(dev, 'rms_norm', np.full((1, 40), 1e15, f32), None, 1e-6), np.ones((1, 40)))

@pytest.mark.parametrize('shape', [(1, 1), (3, 63), (65, 7), (1, 5000), (0, 3)])
def test_softmax(dev, shape):
    x = normal(*shape, s=5.)
    e = np.exp(x.astype(float) - x.max(-1, keepdims=True, initial=-np.inf))
    close(run(dev, 'softmax', x), e / e.sum(-1, keepdims=True))

def test_softmax_of_extreme_scores(dev):
    x = np.array([[1e30, 1e30, -1e30] + [-np.inf]*10, [0, -np.inf, -np.inf] + [-200]*10], f32)
    close(run(dev, 'softmax', x), [[.5, .5] + [0]*11, [1] + [0]*12])

@pytest.mark.parametrize('shape', [(1, 1), (3, 63), (8, 65), (1, 5000)])
def test_argmax(dev, shape):
    x = normal(*shape).round(1)
    same(run(dev, 'argmax', x), [list(r).index(max(r)) for r in x])

def test_argmax_of_equals_nan_and_nothing(dev):
    x = np.full((4, 20), -np.inf, f32)
    x[1, [3, 17]] = 5; x[2, 0] = np.nan; x[2, 19] = -1e30; x[3] = np.nan
    same(run(dev, 'argmax', x), [0, 3, 19, 0])

@pytest.mark.parametrize('T, V, k', [(1, 1, 1), (3, 63, 1), (5, 65, 40), (2, 65, 65), (1, 999, 9), (0, 9, 3)])
def test_top_k(dev, T, V, k):
    x = normal(T, V).round(1)
    values, ids = run(dev, 'top_k', x, k)
    want = np.array([sorted(range(V), key=lambda i: (-r[i], i))[:k] for r in x], i32).reshape(T, k)
    same(ids, want)
    same(values, np.take_along_axis(x, want, 1))

def test_top_k_of_a_rising_row_is_quick(dev):
    x = np.arange(50_000, dtype=f32)[None]
    values, ids = run(dev, 'top_k', x, 40_000)
    same(ids[0], np.arange(49_999, 9_999, -1))

# ---- position ----
def turned(x, cs, neox):
    y, R = x.astype(float), cs.shape[1]
    for j in range(R):
        a, b = (j, j + R) if neox else (2*j, 2*j + 1)
        c, s = cs[:, None, j, 0].astype(float), cs[:, None, j, 1].astype(float)
        y[..., a], y[..., b] = c * x[..., a] - s * x[..., b], s * x[..., a] + c * x[..., b]
    return y

def angles(T, R):
    a = rng.uniform(-np.pi, np.pi, (T, R))
    return np.stack([np.cos(a), np.sin(a)], -1).astype(f32)

@pytest.mark.parametrize('neox', [False, True])
@pytest.mark.parametrize('T, H, D, R', [(1, 1, 8, 4), (7, 5, 64, 32), (65, 1, 60, 30), (3, 5, 16, 2),
                                        (2, 3, 256, 128), (0, 2, 8, 4)])
def test_rope(dev, T, H, D, R, neox):
    x, cs = normal(T, H, D), angles(T, R)
    close(run(dev, 'rope', x, cs, neox), turned(x, cs, neox))

def test_rope_by_hand(dev):
    a = np.array([1, .01])
    cs = np.stack([np.cos(a), np.sin(a)], -1).astype(f32)[None]
    x, y = np.array([[[1, 0, 1, 0]]], f32), np.array([[[1, 1, 0, 0]]], f32)
    close(run(dev, 'rope', x, cs), [[[.5403023, .8414710, .9999500, .0099998]]])
    close(run(dev, 'rope', y, cs, neox=True), [[[.5403023, .9999500, .8414710, .0099998]]])

@pytest.mark.parametrize('neox', [False, True])
@pytest.mark.parametrize('dt', [f32, f16])
def test_rope_cells(dev, dt, neox):
    k, cs = normal(9, 3, 20).astype(dt), angles(9, 8)
    close(run(dev, 'rope_cells', k, cs, neox), turned(k, cs, neox).astype(dt), 1e-6 if dt is f32 else 1e-3)

# ---- memory ----
@pytest.mark.parametrize('dt', [f32, f16])
@pytest.mark.parametrize('K', [1, 7, 64])
def test_set_rows(dev, dt, K):
    dst, src = normal(9, K).astype(dt), normal(5, K)
    want = dst.copy(); want[[3, 0, 8]] = src[[0, 2, 4]]
    same(run(dev, 'set_rows', dst, src, ints(3, -1, 0, 9, 8)), want)

def test_set_rows_rounds_halves_as_numpy_does(dev):
    src = np.array([[65504, 65519.99, 65520, -1e30, 2**-24, 2**-25, 1.5*2**-24, 2**-25*1.01,
                     1 + 2**-11, 1 + 3*2**-11, -0., np.nan]], f32)
    with np.errstate(all='ignore'): want = src.astype(f16)
    got = run(dev, 'set_rows', np.zeros(src.shape, f16), src, ints(0))
    same(got.view(np.uint16)[:, :-1], want.view(np.uint16)[:, :-1])
    assert np.isnan(got[0, -1])

@pytest.mark.parametrize('dt', [f32, f16, i32])
@pytest.mark.parametrize('shape', [(1,), (3, 5), (7, 1025), (0, 4)])
def test_copy(dev, dt, shape):
    src = normal(*shape, s=100.).astype(dt)
    same(run(dev, 'copy', np.zeros(shape, dt), src), src)

def test_copy_of_blocks_and_of_a_stream(dev):
    raw = rng.integers(0, 60, 4 * 36, dtype=np.uint8)
    a, b = dev.upload(raw, 'q4_0', (4, 64)), dev.upload(np.zeros_like(raw), 'q4_0', (4, 64))
    dev.copy(b, a)
    same(a.numpy(), b.numpy())
    k = dev.upload(normal(6, 33)); old = k.numpy()
    dev.copy(k.rows(3, 6), k.rows(0, 3))
    same(k.numpy(), old[[0, 1, 2, 0, 1, 2]])

def test_get_rows_of_floats(dev):
    table = normal(5, 33)
    same(run(dev, 'get_rows', table, ints(4, 0, 4)), table[[4, 0, 4]])
    assert not run(dev, 'get_rows', table, ints(-1, 5, 2**31 - 1, -2**31)).any()

@pytest.mark.parametrize('T, N, K', [(1, 1, 1), (1, 63, 65), (7, 65, 64), (65, 3, 100), (0, 4, 8), (3, 5, 7)])
@pytest.mark.parametrize('bias', [False, True])
def test_matmul_of_floats(dev, T, N, K, bias):
    x, w, b = normal(T, K), normal(N, K), normal(N) if bias else None
    close(run(dev, 'matmul', x, w, b), x.astype(float) @ w.T + (0 if b is None else b), 2e-6)

# ---- attention ----
def attention(q, k, v, cells, ranges, scale, softcap=0., sinks=None):
    (T, H, _), G = q.shape, k.shape[1]
    out = np.zeros((T, H, v.shape[2]))
    for t in range(T):
        see = [c for c in cells[max(ranges[t, 0], 0):max(ranges[t, 1], 0)] if 0 <= c < len(k)]
        for h in range(H if see else 0):
            x = scale * (k[see, h*G//H].astype(float) @ q[t, h].astype(float))
            if softcap: x = softcap * np.tanh(x / softcap)
            if sinks is not None: x = np.append(x, sinks[h])
            p = np.exp(x - x.max())
            out[t, h] = p[:len(see)] @ v[see, h*G//H].astype(float) / p.sum()
    return out

def case(T, H, G, D, E, C, dt=f32, s=1.):
    q, k, v = normal(T, H, D, s=s), normal(C, G, D).astype(dt), normal(C, G, E).astype(dt)
    cells = rng.permutation(C).astype(i32)
    a = rng.integers(0, C // 2 + 1, T)
    ranges = np.stack([a, a + rng.integers(0, C // 2 + 1, T)], 1).astype(i32)
    ranges[0] = 0, C
    if T > 2: ranges[1], ranges[2] = (3, 3), (C - 1, C)   # sees nothing; sees one
    return q, k, v, cells, ranges

@pytest.mark.parametrize('dt', [f32, f16])
@pytest.mark.parametrize('T, H, G, D, E, C', [
    (1, 1, 1, 64, 64, 1), (1, 9, 3, 64, 64, 200), (7, 5, 5, 8, 8, 65), (65, 5, 1, 16, 16, 130),
    (7, 4, 2, 60, 33, 64),
    (3, 4, 1, 256, 256, 129), (2, 40, 2, 24, 40, 63), (5, 2, 2, 1, 1, 500), (0, 2, 1, 8, 8, 4)])
def test_attention(dev, dt, T, H, G, D, E, C):
    q, k, v, cells, ranges = case(max(T, 1), H, G, D, E, C, dt)
    c = q[:T], k, v, cells, ranges[:T]
    close(run(dev, 'attention', *c, D**-.5), attention(*c, D**-.5), 2e-6)

def test_attention_with_mixed_types(dev):
    q, k, v, cells, ranges = case(4, 6, 2, 32, 32, 150)
    for a, b in ((f16, f32), (f32, f16)):
        c = q, k.astype(a), v.astype(b), cells, ranges
        close(run(dev, 'attention', *c, .2), attention(*c, .2), 2e-6)

def test_attention_softcap_and_sinks(dev):
    c = case(7, 6, 2, 32, 32, 150, s=20.)
    sinks = normal(6, s=5.); sinks[0], sinks[1] = 1000, -1000
    # scores reach 200, where neighbouring floats are 1.5e-5 apart
    close(run(dev, 'attention', *c, .5, 30.), attention(*c, .5, 30.), 2e-5)
    close(run(dev, 'attention', *c, .5, 0., sinks), attention(*c, .5, 0., sinks), 5e-5)
    close(run(dev, 'attention', *c, .5, 30., sinks), attention(*c, .5, 30., sinks), 2e-5)

def test_attention_with_scores_far_apart(dev):
    c = case(3, 2, 1, 16, 16, 300, s=1000.)
    close(run(dev, 'attention', *c, 10.), attention(*c, 10.), 1e-5)

def test_attention_passes_over_wild_cells_and_ranges(dev):
    q, k, v, cells, _ = case(4, 2, 1, 16, 16, 100)
    cells[[0, 50, 99]] = -1, 100, 2**31 - 1
    ranges = np.array([[-5, 1000], [2**31 - 2, 2**31 - 1], [60, 20], [0, 1]], i32)
    close(run(dev, 'attention', q, k, v, cells, ranges, .25), attention(q, k, v, cells, ranges, .25), 2e-6)

def test_attention_does_not_depend_on_where_cells_lie(dev):
    q, k, v, cells, ranges = case(5, 4, 2, 32, 32, 150)
    deal = rng.permutation(150)
    k2, v2 = np.empty_like(k), np.empty_like(v)
    k2[deal], v2[deal] = k, v
    a = run(dev, 'attention', q, k, v, cells, ranges, .2)
    same(a, run(dev, 'attention', q, k2, v2, deal[cells].astype(i32), ranges, .2))

def test_attention_ignores_what_it_cannot_see(dev):
    q, k, v, cells, ranges = case(1, 4, 2, 32, 32, 150)
    ranges[0] = 10, 90
    a = run(dev, 'attention', q, k, v, cells, ranges, .2)
    k[cells[90:]], v[cells[90:]], v[cells[:10]] = np.nan, np.inf, np.nan
    same(a, run(dev, 'attention', q, k, v, cells, ranges, .2))

# ---- a row alone and in company: the same bits ----
T0 = 33
ROWS = {   # op -> (arguments that have rows, other arguments)
    **{op: ((normal(T0, 77, s=3.),), {}) for op in ONE},
    **{op: ((normal(T0, 77), normal(T0, 77)), {}) for op in TWO},
    'scale': ((normal(T0, 77),), dict(s=.3)), 'softcap': ((normal(T0, 77, s=30.),), dict(c=20.)),
    'rms_norm': ((normal(T0, 77),), dict(w=normal(77), eps=1e-6)), 'softmax': ((normal(T0, 77),), {}),
    'argmax': ((normal(T0, 77),), {}), 'top_k': ((normal(T0, 77),), dict(k=5)),
    'rope': ((normal(T0, 5, 20), angles(T0, 8)), dict(neox=True)),
    'matmul': ((normal(T0, 77),), dict(w=normal(65, 77), bias=normal(65))),
    'quantize_rows': ((normal(T0, 96),), {}),
}

@pytest.mark.parametrize('op', ROWS)
def test_batch_invariance(dev, op):
    rows, rest = ROWS[op]
    names = [n for n in OPS[op].args if n not in rest]
    one = lambda a, b: run(dev, op, **dict(zip(names, [x[a:b].copy() for x in rows])), **rest)
    whole = one(0, T0)
    for T in (1, 2, 3, 8):
        for a in (0, 1, 17, T0 - T):
            for x, y in zip(one(a, a + T), whole) if isinstance(whole, tuple) else [(one(a, a + T), whole)]:
                same(x, y[a:a + T])

def test_batch_invariance_has_been_asked_of_all():
    elsewhere = {'get_rows', 'attention', 'matmul_q8'}              # the last in test_act_quant.py
    assert {n for n, o in OPS.items() if o.out} == {*ROWS, *elsewhere}

@pytest.mark.parametrize('dt', [f32, f16])
def test_batch_invariance_of_attention(dev, dt):
    q, k, v, cells, ranges = case(T0, 6, 2, 36, 36, 300, dt)
    whole = run(dev, 'attention', q, k, v, cells, ranges, .2)
    for T in (1, 2, 3, 8):
        for a in (0, 1, 17, T0 - T):
            few = run(dev, 'attention', q[a:a+T].copy(), k, v, cells, ranges[a:a+T].copy(), .2)
            same(few, whole[a:a+T])
    # nor on where in a longer list a row's stretch lies
    lead = rng.integers(0, 300, 29).astype(i32)
    moved = run(dev, 'attention', q, k, v, np.concatenate([lead, cells]), ranges + 29, .2)
    same(moved, whole)

@pytest.mark.parametrize('softcap, sink', [(0., False), (20., True)])
def test_split_lists_give_the_same_bits(ocl, monkeypatch, softcap, sink):
    from llamaref.compute import opencl
    monkeypatch.setattr(opencl, 'split', lambda T, *_: T == 1)
    q, k, v, cells, ranges = case(33, 4, 1, 36, 36, 4200)
    ranges[:8, 1] = ranges[:8, 0] + [0, 1, 63, 64, 65, 100, 2049, 4200]
    cells[::100] = -1
    sinks = normal(4) if sink else None
    whole = run(ocl, 'attention', q, k, v, cells, ranges, .2, softcap, sinks)
    close(whole[:10], attention(q[:10], k, v, cells, ranges[:10], .2, softcap, sinks), 5e-6)
    for a in range(10):
        one = run(ocl, 'attention', q[a:a+1].copy(), k, v, cells, ranges[a:a+1].copy(), .2, softcap, sinks)
        same(one, whole[a:a+1])

@pytest.mark.parametrize('shape, yes', [
    ((1, 4, 1, 4096, 2), True), ((1, 4, 1, 4095, 2), False), ((33, 4, 1, 4096, 2), False),
    ((1, 32, 8, 600, 2), False),
    ((1, 32, 8, 600, 64), True), ((0, 4, 1, 4096, 2), False)])
def test_when_a_list_is_split(ocl, shape, yes):
    from llamaref.compute.opencl import split
    assert split(*shape) == yes   # T, H, G, n, units

# ---- tensors ----
def test_views_start_anywhere(dev):
    a = normal(7, 33)
    t = dev.upload(a)
    same(dev.scale(t.rows(3, 6), 2.).numpy(), 2 * a[3:6])
    same(dev.scale(t.rows(3, 6).reshape(-1, 11), 2.).numpy(), 2 * a[3:6].reshape(-1, 11))
    t.rows(2, 4).write(np.zeros((2, 33), f32))
    same(t.numpy()[1:5], np.concatenate([a[1:2], np.zeros((2, 33), f32), a[4:5]]))
    assert t.rows(2, 2).numpy().shape == (0, 33)

def test_read_only_arrays_are_shared(dev):
    a = normal(64, 64); a.flags.writeable = False
    t = dev.upload(a)
    x = normal(1, 64)
    close(dev.matmul(dev.upload(x), t.rows(5, 9)).numpy(), x @ a[5:9].T, 2e-6)
    host = t.memory.block if dev.name == 'numpy' else t.memory.block.host
    assert host is None or np.shares_memory(host, a)
    u, idx = dev.upload(normal(64, 64)), dev.upload(ints(*range(64)))
    for wrong in (lambda: t.write(a), lambda: dev.set_rows(t, u, idx), lambda: dev.copy(t, u)):
        with pytest.raises(DeviceError, match='read-only'): wrong()

def test_writable_arrays_are_copied(dev):
    a = normal(3, 3); t = dev.upload(a); want = a.copy()
    a[:] = 0
    same(t.numpy(), want)

# ---- wrong calls ----
WRONG = {   # what is said -> call
    'rms_norm: w has shape (3,), wanted (K) with K = 4': lambda d, t: d.rms_norm(t(2, 4), t(3)),
    'rms_norm: x is ndarray, wanted a Tensor': lambda d, t: d.rms_norm(np.ones((2, 2), f32)),
    'rms_norm: x has type f16, wanted f32': lambda d, t: d.rms_norm(t(2, 4, dt=f16)),
    'add: b has shape (5,), wanted (*, K) or (K) with *': lambda d, t: d.add(t(2, 4), t(5)),
    'add: b has shape (3, 4)': lambda d, t: d.add(t(2, 4), t(3, 4)),
    'matmul: w has shape (6, 5), wanted (N, K) with': lambda d, t: d.matmul(t(2, 4), t(6, 5)),
    'matmul: bias has shape (5,), wanted (N) with': lambda d, t: d.matmul(t(2, 4), t(6, 4), t(5)),
    'matmul: w has type i32': lambda d, t: d.matmul(t(2, 4), t(6, 4, dt=i32)),
    'get_rows: ids has type f32, wanted i32': lambda d, t: d.get_rows(t(2, 4), t(3)),
    'rope: 2*R <= D is needed, but R = 3, D = 4': lambda d, t: d.rope(t(1, 1, 4), t(1, 3, 2)),
    'rope: cs has shape (2, 2, 2), wanted (T, R, 2) with T = 1': lambda d, t: d.rope(t(1, 1, 4), t(2, 2, 2)),
    'attention: G > 0 and H % G == 0 is needed, but G = 2, H = 3': lambda d, t: d.attention(
        t(1, 3, 4), t(9, 2, 4), t(9, 2, 4), t(9, dt=i32), t(1, 2, dt=i32), 1.),
    'attention: v has shape (8, 1, 4), wanted (C, G, E) with': lambda d, t: d.attention(
        t(1, 3, 4), t(9, 1, 4), t(8, 1, 4), t(9, dt=i32), t(1, 2, dt=i32), 1.),
    'attention: ranges has type f32, wanted i32': lambda d, t: d.attention(
        t(1, 3, 4), t(9, 1, 4), t(9, 1, 4), t(9, dt=i32), t(1, 2), 1.),
    'top_k: 0 < k <= V is needed, but k = 5, V = 4': lambda d, t: d.top_k(t(1, 4), 5),
    'argmax: V > 0 is needed': lambda d, t: d.argmax(t(2, 0)),
    'copy: src has type f16, wanted f32': lambda d, t: d.copy(t(2, 4), t(2, 4, dt=f16)),
    'set_rows: src has shape (1, 3), wanted (T, K) with K = 4':
        lambda d, t: d.set_rows(t(2, 4), t(1, 3), t(1, dt=i32)),
    "rms_norm: got an unexpected keyword argument 'foo'": lambda d, t: d.rms_norm(t(1, 4), foo=1),
    "rms_norm: missing a required argument: 'x'": lambda d, t: d.rms_norm(),
    'upload: float64, wanted one of f32, f16, i32': lambda d, t: d.upload(np.ones(3)),
    'upload: 17 bytes, but q4_0 (32,) takes 18': lambda d, t: d.upload(np.zeros(17, np.uint8), 'q4_0', (32,)),
    'a row of 33 is no whole number of q4_0 blocks of 32':
        lambda d, t: d.upload(np.zeros(18, np.uint8), 'q4_0', (33,)),
    "unknown tensor type 'q4_9'": lambda d, t: d.empty((1, 32), 'q4_9'),
    'empty: negative size': lambda d, t: d.empty((3, -1)),
    'rows 1:4 are not within 0:3': lambda d, t: t(3, 2).rows(1, 4),
    'reshape: (3, 2) does not fit into (4, -1)': lambda d, t: t(3, 2).reshape(4, -1),
    'write: got float32 (2, 2), wanted f32 (3, 2)': lambda d, t: t(3, 2).write(np.zeros((2, 2), f32)),
    'write: got float32 (2,), wanted i32 (2,)': lambda d, t: t(2, dt=i32).write(np.zeros(2, f32)),
}

@pytest.mark.parametrize('said', WRONG)
def test_wrong_calls_say_what_is_wrong(dev, said):
    t = lambda *shape, dt=f32: dev.upload(np.zeros(shape, dt))
    with pytest.raises(DeviceError) as e: WRONG[said](dev, t)
    assert said in str(e.value)

def test_tensors_of_another_device(ocl):
    x = Device.get('numpy').upload(normal(2, 4))
    with pytest.raises(DeviceError, match='rms_norm: x is on numpy, wanted opencl:0'): ocl.rms_norm(x)

# ---- choosing a device ----
@pytest.mark.parametrize('name', ['nope', 'opencl:99', 'numpy:1', 'opencl:x', 'cuda', ':', 'opencl:-1'])
def test_unknown_devices_name_those_present(name):
    with pytest.raises(DeviceError, match='there are: .*numpy') as e: Device.get(name)
    assert repr(name) in str(e.value)

def test_environment_names_the_device(monkeypatch):
    monkeypatch.setenv('LLAMAREF_DEVICE', 'numpy')
    assert Device.best().name == Device.get().name == 'numpy'
    monkeypatch.setenv('LLAMAREF_DEVICE', 'nope')
    with pytest.raises(DeviceError, match="'nope'"): Device.best()

def test_best_is_compiled_and_the_same_object(ocl, monkeypatch):
    monkeypatch.delenv('LLAMAREF_DEVICE', raising=False)
    assert Device.best() is ocl is Device.get('opencl:0')

def test_without_opencl_numpy_says_so_once(monkeypatch, caplog):
    import sys
    from llamaref.compute import device
    from llamaref.log import get_logger
    monkeypatch.delenv('LLAMAREF_DEVICE', raising=False)
    monkeypatch.setitem(sys.modules, 'llamaref.compute.opencl', None)
    monkeypatch.setattr(device.log, '_said', set(), raising=False)
    monkeypatch.setattr(get_logger(), 'propagate', True)
    with caplog.at_level('WARNING'): assert Device.best().name == Device.best().name == 'numpy'
    said = list({id(r): r.message for r in caplog.records}.values())     # one record may pass two handlers
    assert said == ['no OpenCL device here: computing with numpy, which is slow']

@pytest.mark.parametrize('n', [0, -1])
def test_senseless_thread_counts(n):
    with pytest.raises(DeviceError, match=f'n_threads is {n}'): Device.get('numpy', n_threads=n)

def test_thread_count_changes_no_bit(ocl):
    one = Device.get('opencl', n_threads=1)
    assert one.units == 1 and one is not ocl or ocl.units == 1
    c = case(7, 6, 2, 32, 32, 150)
    same(run(one, 'attention', *c, .2), run(ocl, 'attention', *c, .2))
    x, w = normal(5, 100), normal(70, 100)
    same(run(one, 'matmul', x, w), run(ocl, 'matmul', x, w))

# ---- kernels ----
def test_every_operation_has_a_kernel(ocl):
    from llamaref.compute.opencl import LAUNCHES
    assert set(LAUNCHES) == set(OPS)

def test_broken_kernels_show_the_log(ocl, monkeypatch):
    from llamaref.compute import opencl
    monkeypatch.setattr(opencl, 'kernel_text', lambda name: '__kernel void f() { this is no C; }')
    with pytest.raises(DeviceError, match='broken.cl -DX=1(.|\n)*error'): ocl.program('broken', ('-DX=1',))
    monkeypatch.undo()
    with pytest.raises(DeviceError, match='no kernel source nope.cl'): ocl.program('nope')

# ---- plans ----
class Net:
    "A layer with everything in it"
    def __init__(self, dev, K=48, H=4, G=2, C=40, dt='f16'):
        r = np.random.default_rng(1)
        self.dev, self.H, self.G, self.D = dev, H, G, K // H
        w = lambda *s: dev.upload((r.normal(size=s) / s[-1]**.5).astype(f32))
        self.q, self.k, self.v, self.o = w(K, K), w(G*self.D, K), w(G*self.D, K), w(K, K)
        self.gate, self.up, self.down, self.words = w(96, K), w(96, K), w(K, 96), w(50, K)
        self.mem = [dev.zeros((C, G, self.D), dt) for _ in 'kv']
        self.cap = C

    def inputs(self, T):
        shapes = {'ids': (T,), 'write': (T,), 'ranges': (T, 2), 'cells': (self.cap,)}
        spec = {'cs': ((T, self.D//2, 2), 'f32')} | {n: (s, 'i32') for n, s in shapes.items()}
        return Inputs(self.dev, spec)

    def forward(self, i):
        d, T = self.dev, i['ids'].shape[0]
        x = d.get_rows(self.words, i['ids'])
        h = d.rms_norm(x)
        heads = lambda y, n: y.reshape(T, n, self.D)
        k, v = (m.reshape(self.cap, -1) for m in self.mem)
        d.set_rows(k, d.rope(heads(d.matmul(h, self.k), self.G), i['cs'], True).reshape(T, -1), i['write'])
        d.set_rows(v, d.matmul(h, self.v), i['write'])
        q = d.rope(heads(d.matmul(h, self.q), self.H), i['cs'], True)
        a = d.attention(q, *self.mem, i['cells'], i['ranges'], self.D**-.5)
        x = d.add(x, d.matmul(a.reshape(T, -1), self.o))
        h = d.rms_norm(x)
        x = d.add(x, d.matmul(d.swiglu(d.matmul(h, self.gate), d.matmul(h, self.up)), self.down))
        return d.matmul(x, self.words)

    def values(self, ids, start):
        T = len(ids); p = np.arange(start, start + T)
        a = p[:, None] * .3**np.arange(self.D//2)
        return {'ids': np.asarray(ids), 'cs': np.stack([np.cos(a), np.sin(a)], -1), 'write': p,
                'ranges': np.stack([0*p, p + 1], 1), 'cells': np.arange(start + T)}

def recorded(net, T, arena=None):
    i = net.inputs(T)
    with net.dev.record(arena) as plan: y = net.forward(i)
    def step(ids, start): i.send(net.values(ids, start)); plan.run(); return y.numpy()
    return step, plan

def test_eager_and_replay_agree_to_the_bit(dev):
    eager, net = Net(dev), Net(dev)
    step, plan = recorded(net, 3)
    for n in range(4):
        ids = rng.integers(0, 50, 3)
        i = eager.inputs(3); i.send(eager.values(ids, 3*n))
        same(step(ids, 3*n), eager.forward(i).numpy())
    assert len(plan) == 19 and sum(plan.kinds().values()) == 19

def test_plans_of_all_shapes_share_an_arena(dev):
    ids = rng.integers(0, 50, 30)
    arena, net, want = Arena(dev), Net(dev), recorded(Net(dev), 30)[0](ids, 0)
    plans = {T: recorded(net, T, arena)[0] for T in (8, 1, 2, 3)}
    at = 0
    for T in (1, 8, 2, 1, 3, 8, 3, 1, 2, 1):
        same(plans[T](ids[at:at + T], at), want[at:at + T]); at += T
    assert at == 30 and arena.nbytes() < 20 * 4096

def test_memory_of_a_plan_is_used_again(dev):
    with dev.record() as plan:
        x = dev.upload(normal(10, 1000))
        for _ in range(50): x = dev.add(x, x)
    assert len(plan) == 50 and len(plan.arena.blocks) == 2

def test_a_plan_outlives_its_tensors(dev):
    x = dev.upload(normal(1, 8)); want = x.numpy() * 6
    with dev.record() as plan: y = dev.scale(dev.scale(x, 2.), 3.)
    del x
    junk = [dev.upload(normal(1, 8)) for _ in range(20)]
    plan.run()
    same(y.numpy(), want)
    assert len(junk) == 20

def test_kernels_of_a_plan_that_is_gone_are_used_again(ocl):
    import gc
    def made():
        with ocl.record() as plan:
            x = ocl.upload(normal(1, 8))
            for _ in range(20): x = ocl.softcap(x, 3.)
        return {c[0].int_ptr for c in plan.calls}
    first = made(); gc.collect()
    assert len(first) == 20 and made() <= first | {k.int_ptr for k in ocl.spare['elementwise', (), 'softcap']}
    assert len(ocl.spare['elementwise', (), 'softcap']) < 30

def test_an_error_while_recording_leaves_the_device_usable(dev):
    x = dev.upload(normal(2, 8))
    with pytest.raises(DeviceError):
        with dev.record(): dev.add(x, dev.upload(normal(3)))
    assert dev.plan is None and dev.scale(x, 1.).numpy().shape == (2, 8)

def test_nothing_to_see_inside_record(dev):
    x = dev.upload(normal(2, 8))
    with dev.record() as plan:
        y = dev.scale(x, 2.)
        for wrong in (y.numpy, lambda: y.write(np.zeros((2, 8), f32)), lambda: dev.zeros((2,)), plan.run,
                      lambda: dev.record().__enter__()):
            with pytest.raises(DeviceError, match='inside record'): wrong()
    plan.run()
    same(y.numpy(), x.numpy() * 2)

def test_inputs_wait_for_the_transfer_before(dev):
    i = Inputs(dev, {'x': ((200_000,), 'f32')})
    with dev.record() as plan: y = dev.scale(i['x'].reshape(1, -1), 1.)
    for n in range(30):
        i.send({'x': np.full(200_000, n, f32)}); plan.run()
        if n % 7 == 0: assert (y.numpy() == n).all()

@pytest.mark.parametrize('values, said', [
    ({'a': np.zeros(4, i32)}, r'input a: got int32 \(4,\), room for int32 \(3,\)'),
    ({'a': np.zeros((3, 1), i32)}, 'input a'), ({'a': np.zeros(3, f32)}, 'input a: got float32'),
    ({'z': np.zeros(3, i32)}, "no input 'z'; there are: a, b")])
def test_wrong_inputs(dev, values, said):
    i = Inputs(dev, {'a': ((3,), 'i32'), 'b': ((2, 2), 'f32')})
    with pytest.raises(DeviceError, match=said): i.send(values)

def test_two_threads_at_once(dev):
    if 'Oclgrind' in dev.about: pytest.skip('the simulator itself is for one thread')
    ids = rng.integers(0, 50, 30)
    want = recorded(Net(dev), 30)[0](ids, 0)
    failed = []
    def work(T):
        try:
            for _ in range(3):
                step = recorded(Net(dev), T)[0]
                for at in range(0, 30, T): same(step(ids[at:at+T], at), want[at:at+T])
                net = Net(dev)
                for at in range(0, 6, T):
                    i = net.inputs(T); i.send(net.values(ids[at:at+T], at))
                    same(net.forward(i).numpy(), want[at:at+T])
        except BaseException as e: failed.append(e)
    threads = [threading.Thread(target=work, args=(T,)) for T in (1, 2, 3)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not failed
